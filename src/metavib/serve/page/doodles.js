// A few drawings of nothing in particular: what "something else" looks like before anybody has shown it.

const curve = (n, at) => Array.from({ length: n }, (_, i) => at(i / (n - 1)))

export const DOODLES = [
  [curve(40, t => [0.5 + 0.4 * t * Math.cos(14 * t), 0.5 + 0.4 * t * Math.sin(14 * t)])], // a spiral
  [curve(9, t => [0.1 + 0.8 * t, Math.round(8 * t) % 2 ? 0.25 : 0.75])], // a zigzag
  [0, 1, 2].map(k => curve(2, t => [0.5 + 0.4 * (2 * t - 1) * Math.cos(k * Math.PI / 3), 0.5 + 0.4 * (2 * t - 1) * Math.sin(k * Math.PI / 3)])), // an asterisk
  [curve(50, t => [0.1 + 0.7 * t + 0.12 * Math.sin(19 * t), 0.5 - 0.28 * Math.cos(19 * t)])], // loops
  [curve(2, t => [0.3, 0.1 + 0.8 * t]), curve(2, t => [0.7, 0.1 + 0.8 * t]), ...[0.3, 0.5, 0.7].map(y => curve(2, t => [0.3 + 0.4 * t, y]))], // a ladder
  [curve(20, t => [0.5 - 0.35 * Math.cos(Math.PI * t), 0.75 - 0.5 * Math.sin(Math.PI * t)]), curve(2, t => [0.5, 0.7 + 0.05 * t])] // an arch over a dot
]
