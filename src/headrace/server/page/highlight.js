// Colours for code: comments, texts, numbers and common keywords. It knows no grammar, only what most languages share.

const KEYWORDS = new Set(
  (
    "and as assert async await break case catch class const continue def default del do elif else enum except export " +
    "extends False false final finally fn for from func function global if impl implements import in instanceof " +
    "interface is lambda let match module mut namespace new nil None nonlocal not null of or package pass private " +
    "protected pub public raise return select self static struct super switch template this throw trait True true try " +
    "type typedef typeof union unsafe use using var virtual void where while with yield select insert update delete " +
    "create table values join group order by limit echo then fi done esac"
  ).split(" "),
);
const HASH = new Set("python py sh bash shell zsh ruby rb yaml yml toml perl r make makefile dockerfile ini conf".split(" "));
const DASHES = new Set("sql lua haskell hs".split(" "));
const PLAIN = new Set(["", "text", "txt", "plain", "console", "output", "markdown", "md", "diff"]);
const LONGEST = 20000;

/** [kind, text] pairs whose texts joined are the code; a kind is comment, string, number, keyword, name or "". */
export function highlight(code, lang) {
  const name = lang.toLowerCase();
  if (PLAIN.has(name) || code.length > LONGEST) return [["", code]];
  const comment = HASH.has(name) ? "#[^\\n]*" : DASHES.has(name) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
  const string = `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|\`(?:\\\\.|[^\`\\\\])*\`?`;
  const pattern = new RegExp(`(${comment})|(${string})|(\\b\\d[\\w.]*)|([A-Za-z_$][\\w$]*)`, "g");
  const parts = [];
  let at = 0;
  for (const found of code.matchAll(pattern)) {
    if (found.index > at) parts.push(["", code.slice(at, found.index)]);
    at = found.index + found[0].length;
    parts.push([kind(found, code[at]), found[0]]);
  }
  if (at < code.length) parts.push(["", code.slice(at)]);
  return parts;
}

function kind([, comment, string, number, word], next) {
  if (comment) return "comment";
  if (string) return "string";
  if (number) return "number";
  if (KEYWORDS.has(word)) return "keyword";
  return next === "(" ? "name" : "";
}
