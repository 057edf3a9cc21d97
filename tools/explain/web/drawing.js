// Making elements of HTML and SVG.
"use strict";

const byId = (id) => document.getElementById(id);

function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function append(element, children) {
  for (const child of children) if (child !== null) element.append(child);
  return element;
}

const html = (name, attributes = {}, ...children) =>
  append(setAttributes(document.createElement(name), attributes), children);

const svg = (name, attributes = {}, ...children) =>
  append(setAttributes(document.createElementNS("http://www.w3.org/2000/svg", name), attributes),
    children);

function show(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null));
}

// A horizontal bar of parts: [{name, share, kind}]; what is past 1 is cut.
function stackedBar(parts, label) {
  const bar = html("div", { class: "bar", role: "img", "aria-label": label });
  let used = 0;
  for (const { name, share, kind } of parts) {
    const width = Math.max(0, Math.min(share, 1 - used));
    used += width;
    bar.append(html("span", { class: `part ${kind}`, style: `width:${100 * width}%`, title: name }));
  }
  return bar;
}
