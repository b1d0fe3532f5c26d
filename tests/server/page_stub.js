// node page_stub.js PAGE.html URL QUESTION: runs the chat page's script on a document of stubs, types a question, and prints
// what the page then shows as JSON. No browser: layout and style are not looked at.
"use strict";
const fs = require("fs");
const [, , page, url, question] = process.argv;

class Element {
  constructor() {
    Object.assign(this, {children: [], textContent: "", hidden: false, value: "", className: "", handlers: {}});
  }
  append(...children) { this.children.push(...children); }
  replaceChildren() { this.children = []; }
  addEventListener(name, handler) { this.handlers[name] = handler; }
  requestSubmit() { this.handlers.submit({preventDefault() {}}); }
  scrollIntoView() {}
  show() { return this.hidden ? [] : [this.textContent, ...this.children.flatMap(child => child.show())].filter(text => text); }
}

const elements = {};
const html = fs.readFileSync(page, "utf8");
for (const [, id] of html.matchAll(/ id="(\w+)"/g)) elements[id] = new Element();
elements.effort.value = "low";
global.document = {getElementById: id => elements[id], createElement: () => new Element()};
const network = fetch;
global.fetch = (path, options) => network(url + path, options);
(0, eval)(html.split("<script>")[1].split("</script>")[0]);

async function until(condition) {
  for (let i = 0; i < 600 && !condition(); i++) await new Promise(resolve => setTimeout(resolve, 50));
}

(async () => {
  await until(() => elements.model.textContent);
  elements.text.value = question;
  elements.text.handlers.keydown({key: "Enter", shiftKey: false, isComposing: false, preventDefault() {}});
  const while_running = elements.go.textContent;
  await until(() => elements.go.textContent === "Send");
  console.log(JSON.stringify({model: elements.model.textContent, while_running, log: elements.log.show()}));
})();
