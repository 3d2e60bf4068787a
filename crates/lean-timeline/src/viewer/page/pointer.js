// The pointer on a plot: hovering, clicking, dragging, the wheel.

function listenToPointer(panel) {
  const { plot } = panel;
  const place = (event) => {
    const { left, top } = plot.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  let press = null;
  let wasDrag = false;
  plot.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    press = { x, y, start: panel.view.start, isPan: event.shiftKey, isDrag: false };
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (press && !press.isDrag) press.isDrag = Math.abs(x - press.x) > 4;
    if (!press?.isDrag) return panel.hover(x, y);
    if (press.isPan) {
      panel.view.move(press.start - panel.view.start - (panel.fromX(x) - panel.fromX(press.x)));
      return panel.moved();
    }
    panel.cursorOff();
    panel.dragged = [press.x, x];
  });
  plot.addEventListener("pointerup", (event) => {
    const [x] = place(event);
    const was = press;
    press = null;
    panel.dragged = null;
    if (!was) return;
    if (was.isDrag && !was.isPan) {
      panel.view.set(panel.fromX(Math.min(x, was.x)), panel.fromX(Math.max(x, was.x)));
      panel.moved();
    }
    wasDrag = was.isDrag;
  });
  plot.addEventListener("click", (event) => {
    if (wasDrag || event.detail > 1) return;
    panel.hover(...place(event));
    panel.beforeClick = panel.chosen;
    if (panel.cursor) panel.choose(panel.cursor.tick);
    else if (panel.span) panel.show(panel.span.from, panel.span.until);
  });
  plot.addEventListener("pointercancel", () => {
    press = panel.dragged = null;
    panel.cursorOff();
  });
  plot.addEventListener("pointerleave", () => !press && panel.cursorOff());
  plot.addEventListener("dblclick", () => {
    // The first click of a double click has pinned a tick.
    panel.choose(panel.beforeClick ?? null);
    panel.app.reset();
  });
  plot.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [x, y] = place(event);
      const pixels = event.deltaMode === 0 ? 1 : 24;
      const [along, over] = [event.deltaX * pixels, event.deltaY * pixels];
      if (event.altKey) panel.app.zoomBytes(Math.exp(over * 0.002), panel.fromY(y));
      else if (event.shiftKey || Math.abs(along) > Math.abs(over)) {
        panel.view.move(((along || over) * (panel.view.end - panel.view.start)) / panel.box.width);
        panel.moved();
      } else panel.zoom(Math.exp(over * (event.ctrlKey ? 0.01 : 0.002)), panel.fromX(x));
    },
    { passive: false },
  );
}
