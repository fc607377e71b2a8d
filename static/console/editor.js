"use strict";
// The code editor over a textarea, fetched only where somebody edits; the textarea stays the form's field.
(() => {
  const area = document.querySelector("textarea[data-ace]");
  if (!area) return;
  const modes = { py: "python", js: "javascript", json: "json", yaml: "yaml", yml: "yaml", md: "markdown", sh: "sh", html: "html", css: "css", sql: "sql", toml: "toml", xml: "xml", c: "c_cpp", rs: "rust", go: "golang" };
  const head = (tag, fields) => document.head.append(Object.assign(document.createElement(tag), fields));
  const load = (src) => new Promise((onload, onerror) => head("script", { src, onload, onerror }));
  const start = async () => {
    await load(area.dataset.aceScript);
    const ace = window.ace, base = area.dataset.aceBase, mode = modes[area.dataset.ace.toLowerCase().split(".").pop()];
    ace.config.set("useStrictCSP", true);
    ace.config.set("loadWorkerFromBlob", false);
    ace.config.set("basePath", base);
    const box = document.createElement("div");
    box.className = "ace-box";
    area.before(box);
    const editor = ace.edit(box);
    editor.session.setUseWorker(false);
    editor.session.setValue(area.value);
    editor.setOptions({ enableKeyboardAccessibility: true, fontSize: 13, showPrintMargin: false, tabSize: 4, useSoftTabs: true });
    editor.textInput.getElement().setAttribute("aria-label", "Content of " + area.dataset.ace);
    const { theme } = document.documentElement.dataset;
    if (theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches)) {
      head("link", { rel: "stylesheet", href: base + "/css/theme/tomorrow_night.css" });
      editor.setTheme("ace/theme/tomorrow_night");
    }
    if (mode) editor.session.setMode("ace/mode/" + mode);
    area.hidden = true;
    editor.session.on("change", () => { area.value = editor.getValue(); area.dispatchEvent(new Event("input", { bubbles: true })); });
  };
  start().catch(() => { area.hidden = false; });
})();
