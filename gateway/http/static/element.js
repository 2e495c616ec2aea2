// Makes elements, so that no text from a model is ever read as markup.

/** An element with properties and children; a child may be a text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** The element of an id in the page. */
export function byId(id) {
  return document.getElementById(id);
}

/** A token's text in which line ends can be seen. */
export function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}
