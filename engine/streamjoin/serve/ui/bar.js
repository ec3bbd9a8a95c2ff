// How full a worker is, as a bar.

import { s } from "./dom.js";
import * as f from "./format.js";

/** How full a worker is: 0 to 1 from left to right, each part in its zone's colour, a tick at each threshold. */
export function bar(tau, { tau1, tau2, tau3 }) {
  const value = Math.min(1, tau ?? 0), edges = [0, tau1, tau2, tau3, 1];
  const drawing = s("svg", { class: "tau", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": `tau ${f.tau(tau)}` }, s("rect", { class: "track", x: 0, y: 0, width: 100, height: 10 }));
  for (let zone = 0; zone < 4; zone++) {
    const end = Math.min(value, edges[zone + 1]);
    if (end > edges[zone]) drawing.append(s("rect", { class: `zone${zone}`, x: 100 * edges[zone], y: 0, width: 100 * (end - edges[zone]), height: 10 }));
  }
  for (const edge of [tau1, tau2, tau3]) drawing.append(s("line", { class: "tick", x1: 100 * edge, x2: 100 * edge, y1: 0, y2: 10, "vector-effect": "non-scaling-stroke" }));
  return drawing;
}
