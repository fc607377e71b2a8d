"use strict";
// Files: upload by drop, paste or button with progress, and lines that can be linked.
(() => {
  const $ = (query) => document.querySelector(query), form = $("form[data-upload]"), tree = $("[data-drop='1']");
  const fail = (text) => document.dispatchEvent(new CustomEvent("toast", { detail: { level: "error", text } }));
  const send = (files, overwrite) => {
    const data = new FormData(form), bar = form.querySelector("progress"), request = new XMLHttpRequest();
    data.delete("files");
    for (const file of files) data.append("files", file);
    if (overwrite) data.set("overwrite", "1");
    form.closest("details").open = true;
    bar.hidden = false;
    request.upload.onprogress = (event) => { if (event.lengthComputable) bar.value = (100 * event.loaded) / event.total; };
    request.onload = () => {
      bar.hidden = true;
      if (request.status < 400) { location.reload(); return; }
      const page = new DOMParser().parseFromString(request.responseText, "text/html");
      const text = [...page.querySelectorAll(".state p:not(.actions),.refused p")].map((one) => one.textContent.trim()).join(" ");
      if (request.status === 409 && !overwrite && confirm(text + "\n\nReplace what is there?")) { send(files, true); return; }
      fail(text || "The upload failed.");
    };
    request.onerror = () => { bar.hidden = true; fail("The upload broke off."); };
    request.open("POST", form.action);
    request.send(data);
  };
  if (form) {
    form.onsubmit = (event) => { event.preventDefault(); send([...form.files.files]); };
    if (tree) {
      tree.ondragover = (event) => { event.preventDefault(); tree.classList.add("over"); };
      tree.ondragleave = () => tree.classList.remove("over");
      tree.ondrop = (event) => { event.preventDefault(); tree.classList.remove("over"); if (event.dataTransfer.files.length) send(event.dataTransfer.files); };
    }
    document.onpaste = (event) => {
      const files = event.clipboardData?.files;
      if (files?.length && !event.target.matches("input,textarea")) send(files);
    };
  }
  // The directory by keys: arrows, Home and End move, letters jump to a name, left goes up, right opens.
  const list = $("[data-tree]"), filter = $("[data-filter]");
  const links = () => [...list.querySelectorAll("a")].filter((link) => !link.closest("li").hidden);
  let typed = "", since = 0;
  if (list) list.onkeydown = (event) => {
    const all = links(), here = all.indexOf(document.activeElement), key = event.key;
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    let to = { ArrowDown: all[here + 1], ArrowUp: all[here - 1], Home: all[0], End: all[all.length - 1] }[key];
    if (key === "ArrowRight") all[here].click();
    else if (key === "ArrowLeft") $("[data-up]")?.click();
    else if (key.length === 1 && key !== " ") {
      typed = (event.timeStamp - since < 800 ? typed : "") + key.toLowerCase();
      since = event.timeStamp;
      to = all.find((link) => link.textContent.toLowerCase().startsWith(typed));
      event.stopPropagation();
    } else if (!to) return;
    event.preventDefault();
    if (to) to.focus();
  };
  if (filter && list) filter.oninput = () => list.querySelectorAll("li").forEach((one) => { one.hidden = !one.querySelector("a,span").textContent.toLowerCase().includes(filter.value.toLowerCase()); });
  // #L10 and #L10-L20: a range is marked, and its first line is shown.
  const mark = () => {
    const match = /^#L(\d+)(?:-L(\d+))?$/.exec(location.hash);
    document.querySelectorAll(".lines li.marked").forEach((line) => line.classList.remove("marked"));
    if (!match) return;
    const from = Number(match[1]);
    for (let n = from; n <= (match[2] || from) && n < from + 5000; n += 1) $("#L" + n)?.classList.add("marked");
    $("#L" + from)?.scrollIntoView({ block: "center" });
  };
  const view = $(".code-view");
  if (view) view.onclick = (event) => {
    const line = event.target;
    if (!line.matches("li[id]") || event.offsetX > 50) return;
    const from = /^#L(\d+)/.exec(location.hash), here = Number(line.id.slice(1));
    history.replaceState(null, "", event.shiftKey && from ? "#L" + Math.min(from[1], here) + "-L" + Math.max(from[1], here) : "#" + line.id);
    mark();
  };
  window.onhashchange = mark;
  mark();
})();
