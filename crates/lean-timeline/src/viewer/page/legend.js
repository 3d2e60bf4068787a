// The legend of a panel: a button for each category, with its bytes, which hides and shows it.

class Legend {
  constructor(root, onToggle) {
    this.moment = root.querySelector("[data-testid=moment]");
    this.values = CATEGORIES.map(({ key, name }, c) => {
      const value = element("span", { className: "value", dataset: { testid: `value-${key}` } });
      const button = element(
        "button",
        {
          type: "button",
          colour: c,
          dataset: { testid: `category-${key}` },
          title: `Hide or show; with Shift alone`,
        },
        element("i"),
        element("span", { className: "name", textContent: name }),
        value,
      );
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", (event) => onToggle(c, event.shiftKey));
      root.querySelector(".categories").append(button);
      return { button, value };
    });
  }

  hide(hidden) {
    this.values.forEach(({ button }, c) =>
      button.setAttribute("aria-pressed", String(!hidden.has(c))),
    );
  }

  show(stack, tick, label) {
    if (stack.snapshot.ticks === 0) return;
    this.values.forEach(({ value }, c) => (value.textContent = bytesText(stack.totals[c][tick])));
    const all = stack.totals.reduce((total, of) => total + of[tick], 0);
    this.moment.textContent = `${label} (${momentText(stack.snapshot, tick)}): ${bytesText(all)}`;
  }
}
