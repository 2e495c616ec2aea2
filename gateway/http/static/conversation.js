// The conversation of a chat, as long as the page is open.

import { byId, element } from "./element.js";

/** The messages so far. */
export class Conversation {
  messages = [];
  #list = byId("conversation");

  /** Add what the user said and what the model answered. */
  add(question, answer) {
    for (const message of [{ role: "user", content: question }, { role: "assistant", content: answer }]) {
      this.messages.push(message);
      this.#list.append(element("li", { className: message.role }, message.content));
    }
    this.#list.scrollTop = this.#list.scrollHeight;
  }

  /** Begin anew. */
  clear() {
    this.messages = [];
    this.#list.replaceChildren();
  }
}
