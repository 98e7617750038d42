"use strict";
// Replaces the sections of the page by newer ones that the server renders. Nothing here makes markup of data.
const INTERVAL = 3000;
const pause = document.getElementById("pause");
const connection = document.getElementById("connection");
const isLive = document.body.dataset.mode === "live";
let paused = false;
let running = false;
let again = false;

// Buttons need a script.
function show() {
  for (const button of document.querySelectorAll("button[hidden]")) {
    button.hidden = button === pause && !isLive;
  }
}

function say(text, isOnPage) {
  if (!connection) return;
  // For screen readers only where the page shows it already.
  connection.className = isOnPage ? "skip" : "";
  if (connection.textContent !== text) connection.textContent = text;
}

// Keeps what is open, and where the focus is.
function replace(next) {
  const open = new Set([...document.querySelectorAll("details[open]")].map((own) => own.id));
  const focused = document.activeElement && document.activeElement.id;
  const typed = focused === "find" ? document.getElementById("find").value : null;
  for (const old of document.querySelectorAll("[data-live]")) {
    const own = next.getElementById(old.id);
    if (!own || own.innerHTML === old.dataset.from) continue;
    const from = own.innerHTML;
    for (const details of own.querySelectorAll("details")) details.open = open.has(details.id);
    old.replaceWith(own);
    own.dataset.from = from;
  }
  show();
  if (focused && document.activeElement.id !== focused) {
    const again = document.getElementById(focused);
    if (again) again.focus({ preventScroll: true });
  }
  if (typed !== null) document.getElementById("find").value = typed;
}

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    // An exporter that was started again knows no login of before.
    if (next.body.dataset.mode !== document.body.dataset.mode) {
      location.reload();
      return;
    }
    replace(next);
    const summary = document.getElementById("summary");
    say(summary ? summary.textContent : "", true);
  } catch (error) {
    say("Cannot reach the exporter: the numbers are old. Trying again.");
  } finally {
    running = false;
    if (again) {
      again = false;
      refresh();
    }
  }
}

function swap(href) {
  history.pushState(null, "", href);
  refresh();
}

async function copy(button) {
  const text = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(text.textContent);
  } catch (error) {
    // The clipboard is for pages over HTTPS or of this host only.
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
  const link = event.target.closest("a[data-swap]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    swap(link.getAttribute("href"));
  }
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  swap("/?" + new URLSearchParams(new FormData(event.target)));
});
addEventListener("popstate", refresh);

show();
if (document.body.dataset.mode === "again") location.replace(location.pathname + location.search);
if (isLive) {
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
  });
  setInterval(() => {
    if (!paused && !document.hidden) refresh();
  }, INTERVAL);
}
