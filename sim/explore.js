// A number box of Dash's sliders counts when it is left. Let it count on Enter and a moment after
// typing stops, too: what it hears as being left is this event, and the cursor stays in it.
let waiting;
const count = (box) => {
  clearTimeout(waiting);
  if (box.value) box.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
};
const isBox = (target) => target.matches(".dash-range-slider-input");
document.addEventListener("input", ({ target }) => {
  clearTimeout(waiting);
  if (isBox(target)) waiting = setTimeout(count, 700, target);
});
document.addEventListener("keydown", ({ key, target }) => {
  if (key === "Enter" && isBox(target)) count(target);
});
