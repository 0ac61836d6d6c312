// A question before something that cannot be undone.

import { byId, setText } from "./dom.js";

// Whether the person says yes. `yes` is the text of the button that does it.
export function confirmed(title, text, yes) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-told"), text);
  setText(byId("confirm-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((answer) => {
    dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true });
  });
}
