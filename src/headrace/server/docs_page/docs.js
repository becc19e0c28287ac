// Shows the OpenAPI document of the server that this page comes from. It needs nothing from elsewhere.

const byId = (id) => document.getElementById(id);
const DEEPEST = 12;

/** An element; texts become texts, never markup. */
function el(tag, name, ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children.filter((child) => child !== null));
  return node;
}

const storedKey = () => sessionStorage.getItem("headrace.key") ?? localStorage.getItem("headrace.key") ?? "";

async function load(key) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch("openapi.json", { headers, cache: "no-store" });
  byId("locked").hidden = response.status !== 401;
  if (response.status === 401) {
    byId("key").focus();
    return;
  }
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  show(await response.json());
}

function show(spec) {
  byId("version").textContent = spec.info.version;
  const routes = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => route(spec, method.toUpperCase(), path, operation)),
  );
  byId("routes").replaceChildren(...routes);
}

function route(spec, method, path, operation) {
  const title = el("summary", "", el("span", "method", method), el("code", "", path), el("span", "about", operation.summary ?? ""));
  const details = el("details", "route", title);
  details.dataset.text = `${method} ${path} ${operation.summary ?? ""}`.toLowerCase();
  details.addEventListener("toggle", () => details.childElementCount === 1 && details.append(body(spec, method, path, operation)));
  return details;
}

function body(spec, method, path, operation) {
  const parts = [el("h3", "", "Example"), el("pre", "", example(spec, method, path, operation))];
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content ?? {})) {
    parts.push(el("h3", "", `Request (${media})`), shape(spec, schema));
  }
  for (const [status, response] of Object.entries(operation.responses ?? {})) {
    const inner = el("div", "body");
    for (const [media, { schema }] of Object.entries(response.content ?? {})) inner.append(el("h3", "", media), shape(spec, schema));
    parts.push(el("details", "", el("summary", "", el("code", "", status), el("span", "about", response.description ?? "")), inner));
  }
  return el("div", "body", ...parts);
}

function example(spec, method, path, operation) {
  const prefix = spec.servers?.[0]?.url ?? "";
  const lines = [`curl ${method === "GET" ? "" : `-X ${method} `}'${new URL(`${prefix}${path}`, location.origin)}'`];
  if (spec.security) lines.push(`  -H "Authorization: Bearer $HEADRACE_API_KEY"`);
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  if (schema) {
    const fields = Object.fromEntries(required(spec, resolve(spec, schema)));
    lines.push(`  -H 'Content-Type: application/json'`, `  -d '${JSON.stringify(fields)}'`);
  }
  return lines.join(" \\\n");
}

const PLAIN = { string: "…", integer: 1, number: 1, boolean: true, array: [], object: {} };

function* required(spec, schema) {
  for (const name of schema.required ?? []) {
    const field = resolve(spec, schema.properties[name]);
    const type = field.type ?? resolve(spec, field.anyOf?.[0] ?? {}).type;
    yield [name, name === "messages" ? [{ role: "user", content: "Hello" }] : (field.default ?? PLAIN[type] ?? null)];
  }
}

function resolve(spec, schema) {
  const name = schema.$ref?.split("/").pop();
  return name ? spec.components.schemas[name] : schema;
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map(typeOf).join(" | ");
  if (schema.type === "array") return `array of ${schema.items ? typeOf(schema.items) : "anything"}`;
  return Array.isArray(schema.type) ? schema.type.join(" | ") : (schema.type ?? "anything");
}

/** The fields of a schema; those of inner objects when they are opened. */
function shape(spec, schema, depth = 0) {
  const found = [schema, ...(schema.anyOf ?? schema.oneOf ?? [])].flatMap((one) => (one.type === "array" ? [one.items ?? {}] : [one]));
  const objects = found.map((one) => resolve(spec, one)).filter((one) => one?.properties);
  if (objects.length === 0) return el("p", "type", typeOf(schema));
  const list = el("ul", "");
  for (const object of objects) {
    for (const [name, field] of Object.entries(object.properties)) list.append(line(spec, object, name, field, depth));
  }
  return list;
}

function line(spec, object, name, field, depth) {
  const must = object.required?.includes(name) ? el("span", "must", " required") : null;
  const about = field.description ?? resolve(spec, field)?.description ?? "";
  const limits = ["minimum", "maximum", "default"].filter((limit) => field[limit] !== undefined && field[limit] !== null);
  const type = el("span", "type", ` ${typeOf(field)}${limits.map((limit) => `, ${limit} ${JSON.stringify(field[limit])}`).join("")}`);
  const head = [el("code", "", name), type, must, about ? el("span", "about", ` ${about}`) : null];
  const deeper = JSON.stringify(field).includes('"$ref"') && depth < DEEPEST;
  if (!deeper) return el("li", "", ...head);
  const details = el("details", "", el("summary", "", ...head.filter((part) => part !== null)));
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(el("div", "body", shape(spec, field, depth + 1)));
  });
  return el("li", "", details);
}

function filter() {
  const wanted = byId("filter").value.trim().toLowerCase();
  for (const details of document.querySelectorAll("details.route")) details.hidden = !details.dataset.text.includes(wanted);
}

const fault = (error) => {
  byId("fault").textContent = `The routes cannot be shown: ${error.message}.`;
};

byId("filter").addEventListener("input", filter);
byId("locked").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  sessionStorage.setItem("headrace.key", key);
  load(key).catch(fault);
});
load(storedKey()).catch(fault);
