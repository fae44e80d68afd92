// Puts into the page what the server tells, as it tells it. The elements come from the server, which has escaped all
// texts; without this script the page is the same, and is read again every few seconds.
"use strict";

const MOST_LOG = 1 << 20; // characters of a job's output that are kept

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Elements take the places of those with the same id. Who works with the keyboard keeps the focus.
function show(section, news) {
  const parent = document.getElementById(section);
  if (!parent) return;
  const focused = document.activeElement && document.activeElement.id;
  for (const [key, html] of Object.entries(news.rows || {})) {
    const old = document.getElementById(`${section}-${key}`);
    if (old) old.replaceWith(element(html));
    else parent.append(element(html));
  }
  if (news.order) arrange(parent, news.order.map((key) => document.getElementById(`${section}-${key}`)));
  if (focused && document.activeElement.id !== focused) document.getElementById(focused)?.focus();
}

function arrange(parent, children) {
  children.filter(Boolean).forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] || null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

function say(text) {
  const place = document.getElementById("connection");
  if (!place) return;
  place.textContent = text;
  place.hidden = !text;
}

// ---------------------------------------------------------------------- a job's output

const tail = new Text(); // the last line, which may be written over

function putLog(log, news) {
  tail.remove();
  if (news.log !== undefined) log.textContent = news.log;
  if (news.log_more !== undefined) log.append(news.log_more);
  if (log.textContent.length > MOST_LOG) log.textContent = log.textContent.slice(-MOST_LOG / 2);
  if (news.log_tail !== undefined) tail.data = news.log_tail;
  log.append(tail);
}

function showLog(news) {
  const log = document.getElementById("log");
  if (!log) return;
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  if (news.log !== undefined || news.log_more !== undefined || news.log_tail !== undefined) putLog(log, news);
  if (news.about_log !== undefined) document.getElementById("about-log").textContent = news.about_log;
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// ---------------------------------------------------------------------- what the server tells

function listen() {
  const source = new EventSource(document.body.dataset.stream);
  source.onopen = () => say("");
  source.onerror = () => {
    const ended = source.readyState === EventSource.CLOSED;
    say(ended ? "The server no longer knows this page. Open the address that it printed." : "The connection is lost. Trying again …");
    document.body.classList.add("stale");
    if (ended) setTimeout(listen, 5000);
  };
  source.onmessage = (event) => {
    const { log, log_more, log_tail, about_log, trouble, ...sections } = JSON.parse(event.data);
    document.body.classList.remove("stale");
    for (const [section, news] of Object.entries(sections)) show(section, news);
    showLog({ log, log_more, log_tail, about_log });
    if (trouble !== undefined) say(trouble || "");
  };
}

// ---------------------------------------------------------------------- clicks

async function send(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch(form.action, {
      method: "POST",
      body: new URLSearchParams(new FormData(form)),
      headers: { Accept: "application/json" },
    });
    say(answer.ok ? "" : (await answer.text()).slice(0, 500));
  } catch {
    say("The server was not reached.");
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("submit", (event) => {
  event.preventDefault();
  const form = event.target;
  if (!form.dataset.confirm || window.confirm(form.dataset.confirm)) send(form);
});

if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname);
if (document.body.dataset.stream) listen();
const log = document.getElementById("log");
if (log) log.scrollTop = log.scrollHeight;
