// Puts the parts of the page together.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { newConversation, Store } from "./conversations.js";
import { byId, icon } from "./dom.js";
import { EngineView } from "./engine_view.js";
import { KeyDialog } from "./key_dialog.js";
import { ModelChoice } from "./model_choice.js";
import { announce, notify } from "./notices.js";
import { SettingsView } from "./settings_view.js";
import { Sidebar } from "./sidebar.js";

const api = new Api();
const store = new Store(localStorage);
const connection = new Connection(api);
const chat = new Chat({ api, store, connection, notify, announce });
const composer = new Composer({ send: (text, images) => chat.send(text, images), stop: () => chat.stop() });
const settingsView = new SettingsView(byId("settings"), () => toggleSettings(false));
const engine = new EngineView(byId("panel-engine"), api, connection);
const sidebar = new Sidebar({ store, chat, open: openConversation, create: createConversation, notify });
const keys = new KeyDialog(api, connection);
new ModelChoice(byId("models"), connection, store, () => {
  showModel();
  if (!chat.conversation.messages.length) chat.show();
  engine.forget();
});

// Conversations

function openConversation(id) {
  const conversation = store.load(id);
  if (conversation) chat.open(conversation);
  else createConversation();
}

function createConversation() {
  chat.open(newConversation(store.get("settings") ?? {}));
  showTab("chat");
  byId("prompt").focus();
}

chat.addEventListener("change", () => {
  composer.setBusy(chat.busy);
  if (settingsView.settings !== chat.conversation.settings) settingsView.edit(chat.conversation.settings);
  sidebar.show();
});
chat.addEventListener("saved", () => sidebar.show());
chat.addEventListener("fault", ({ detail }) => settingsView.point(detail));
settingsView.addEventListener("change", () => {
  store.set("settings", settingsView.settings);
  chat.saveSettings();
});
addEventListener("storage", ({ key }) => {
  // Another tab has changed a conversation.
  if (!key?.startsWith("headrace.conversation")) return;
  if (key.endsWith(chat.conversation.id) && !chat.busy && store.load(chat.conversation.id)) openConversation(chat.conversation.id);
  else sidebar.show();
});

// The server

const STATES = { connecting: "Connecting", ready: "Ready", unavailable: "Not available", down: "Lost", locked: "Key needed" };

function showModel() {
  const { model } = connection;
  const most = model?.max_model_len;
  const context = most ? `, context of ${most.toLocaleString("en")} tokens` : "";
  byId("model").textContent = model ? `${model.id}${context}` : "";
  composer.allowImages(Boolean(model?.input_modalities?.includes("image")));
}

connection.addEventListener("models", showModel);
connection.addEventListener("change", ({ detail: { before } }) => {
  const { state, reason } = connection;
  byId("status").textContent = STATES[state];
  byId("status").dataset.state = state;
  const lost = state === "down" || state === "unavailable";
  byId("banner").hidden = !lost;
  byId("banner").textContent = lost ? `${reason} Trying again …` : "";
  if (state === "locked") keys.ask(reason);
  if (state === "ready") {
    if (before === "down" || before === "unavailable") notify("The server is back.");
    if (!chat.conversation.messages.length) chat.show();
    engine.refresh();
  }
});

// Tabs, panels, theme, keys

const TABS = ["chat", "engine"];

function showTab(name) {
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`);
    button.setAttribute("aria-selected", String(tab === name));
    button.tabIndex = tab === name ? 0 : -1;
    byId(`panel-${tab}`).hidden = tab !== name;
  }
  history.replaceState(null, "", name === "engine" ? "#engine" : location.pathname + location.search);
  engine.setShown(name === "engine");
}

for (const tab of TABS) {
  byId(`tab-${tab}`).addEventListener("click", () => showTab(tab));
  byId(`tab-${tab}`).addEventListener("keydown", ({ key }) => {
    if (key !== "ArrowLeft" && key !== "ArrowRight") return;
    const other = TABS.find((one) => one !== tab);
    showTab(other);
    byId(`tab-${other}`).focus();
  });
}

function toggleSettings(open) {
  byId("settings").hidden = !open;
  byId("toggle-settings").setAttribute("aria-expanded", String(open));
  if (innerWidth >= 1100) store.set("panel", open);
  if (open) settingsView.node.querySelector("textarea").focus({ preventScroll: true });
  else byId("toggle-settings").focus();
}

byId("toggle-settings").append(icon("sliders"));
byId("toggle-settings").addEventListener("click", () => toggleSettings(byId("settings").hidden));

const THEMES = { system: "System's colours", light: "Light colours", dark: "Dark colours" };
const GLYPHS = { system: "system", light: "sun", dark: "moon" };

function showTheme(theme) {
  const { dataset } = document.documentElement;
  if (theme === "system") delete dataset.theme;
  else dataset.theme = theme;
  byId("theme").replaceChildren(icon(GLYPHS[theme]));
  byId("theme").setAttribute("aria-label", THEMES[theme]);
  byId("theme").title = THEMES[theme];
  engine.draw();
}

byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % names.length];
  if (next === "system") localStorage.removeItem("headrace.theme");
  else localStorage.setItem("headrace.theme", next);
  showTheme(next);
});

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "Escape" && !event.defaultPrevented && chat.busy && !event.target.closest?.("dialog")) chat.stop();
  else if (event.key === "Escape" && event.target.closest?.("#settings")) toggleSettings(false);
  else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    showTab("chat");
    byId("prompt").focus();
  }
});

showTheme(document.documentElement.dataset.theme ?? "system");
if (innerWidth >= 1100 && store.get("panel")) {
  byId("settings").hidden = false;
  byId("toggle-settings").setAttribute("aria-expanded", "true");
}
const startsAtEngine = location.hash === "#engine";
keys.restore();
const last = store.get("last");
if (last && store.load(last)) openConversation(last);
else createConversation();
if (startsAtEngine) showTab("engine");
connection.check();
