// Puts the page together: tabs, colours, keys.

import { remember } from "./api.js";
import { Chat } from "./chat.js";
import { $, setText } from "./dom.js";
import { Live } from "./live.js";

const THEMES = ["auto", "light", "dark"];
const WORDS = {
  auto: "Colours: as the system has them",
  light: "Colours: light",
  dark: "Colours: dark",
};

let asking = false;
let refusedOnce = false; // somebody who said "not now" is not asked again by a timer

function needKey(kind, error) {
  if (error.status === 404) {
    setText($("notice"), error.message);
    $("notice").hidden = false;
    return;
  }
  if (asking || (refusedOnce && kind === "admin")) return;
  asking = true;
  setText($("key-title"), kind === "admin" ? "Admin key" : "API key");
  setText($("key-why"), error.message);
  $("ask-key").dataset.kind = kind;
  $("ask-key").showModal();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  remember($("ask-key").dataset.kind, $("key").value);
  $("ask-key").close("used");
});
$("key-cancel").addEventListener("click", () => $("ask-key").close("not now"));
$("ask-key").addEventListener("close", () => {
  asking = false;
  refusedOnce = $("ask-key").returnValue !== "used";
  $("ask-key").returnValue = "";
  $("key").value = "";
  if (!refusedOnce && $("ask-key").dataset.kind === "caller") chat.open();
});

function say(text, state) {
  setText($("link"), live.held ? "held" : text.length > 60 ? "not shown" : text);
  $("link").dataset.state = live.held ? "" : state;
  $("link").title = text;
  if (state === "good") $("notice").hidden = true;
}

const live = new Live({ needKey: (error) => needKey("admin", error), say });
const chat = new Chat({ needKey: (error) => needKey("caller", error) });

$("hold").addEventListener("click", () => {
  live.held = !live.held;
  $("hold").setAttribute("aria-pressed", live.held);
  say(live.held ? "held" : "live", "good");
});

function wear(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  localStorage.setItem("octavo.theme", theme);
  setText($("theme"), theme[0].toUpperCase() + theme.slice(1));
  $("theme").setAttribute("aria-label", WORDS[theme]);
  live.dye();
}
const worn = () => localStorage.getItem("octavo.theme") ?? "auto";
wear(THEMES.includes(worn()) ? worn() : "auto");
$("theme").addEventListener("click", () => wear(THEMES[(THEMES.indexOf(worn()) + 1) % THEMES.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => live.dye());

const tabs = [...document.querySelectorAll("[role=tab]")];

function turnTo(tab) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute("aria-selected", chosen);
    each.tabIndex = chosen ? 0 : -1;
    $(each.getAttribute("aria-controls")).hidden = !chosen;
  }
  const name = tab.getAttribute("aria-controls");
  history.replaceState(null, "", `#${name}`);
  if (name === "chat") chat.open();
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => turnTo(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    turnTo(next);
    next.focus();
  });
});
turnTo(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? tabs[0]);
live.start();
