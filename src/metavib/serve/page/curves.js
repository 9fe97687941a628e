// Click points into a plane and watch the band tighten, with one or several models side by side.

import { Task, latest } from './api.js'
import { h, number, s } from './dom.js'

const [LEFT, RIGHT, BOTTOM, TOP] = [42, 8, 30, 10]
const GRID = 121

export async function curves(room, models) {
  let [width, height] = [600, 300] // of a plane on the screen, in its own pixels
  let points = [] // in the order in which they came: { row, without: names of the models that left it out }
  let level = 0.95
  let at = null // where the keys' cross is, in the plane
  const first = models[0]
  const columns = first.columns.filter(c => !c.values)
  let along = columns[0].name
  const fixed = Object.fromEntries(first.columns.map(c => [c.name, c.values ? c.values[0] : (c.low + c.high) / 2]))

  const said = h('p', { className: 'verdict', role: 'status', id: 'curve-said' })
  const problem = h('p', { className: 'problem', role: 'alert' })
  const undo = h('button', { textContent: 'Forget the last point', id: 'curve-undo', onclick: () => forget(points.at(-1)) })
  const clear = h('button', { textContent: 'Start over', id: 'curve-clear', onclick: restart })
  const shown = h('output', {}, '95 %')
  const slider = h('input', { type: 'range', min: 50, max: 99, value: 95, id: 'level', oninput: () => { level = slider.value / 100; shown.textContent = `${slider.value} %`; draw() } })
  const sliders = h('div', { className: 'sliders' })
  const plots = h('div', { className: 'plots' })

  const panes = []
  const sizes = new ResizeObserver(([entry]) => {
    if (!entry.contentRect.width) return // in a room that is not shown
    width = entry.contentRect.width
    height = Math.round(Math.max(230, Math.min(380, 0.55 * width, innerHeight - 360)))
    render()
  })
  for (const model of models) {
    const task = await Task.open(model, 'curves')
    const svg = s('svg', { tabindex: 0, role: 'img', 'aria-describedby': 'curve-help' })
    const pane = { model, task, svg, band: null, wanted: null }
    svg.addEventListener('click', event => clicked(pane, event))
    svg.addEventListener('keydown', event => keyed(pane, event))
    svg.addEventListener('blur', () => { at = null; render() })
    pane.look = latest(() => look(pane))
    panes.push(pane)
    plots.append(h('div', { className: 'card plot' }, h('h2', {}, model.name), svg))
  }
  await recall() // before there is anything to touch: what is added meanwhile would be lost
  room.replaceChildren(
    h('p', { className: 'intro' }, models.length > 1
      ? 'Click or tap to put a point into all planes. The band says where each model expects the next one; it tightens where it has seen enough.'
      : 'Click or tap to put a point into the plane. The band says where the next one is expected; it tightens where enough has been seen.'),
    said, problem, sliders, plots,
    h('div', { className: 'row under' }, undo, clear),
    h('p', { className: 'note', id: 'curve-help' }, 'With keys: arrows move a cross, enter puts a point there, backspace forgets the last one. Click a point to forget it.'))
  for (const pane of panes) sizes.observe(pane.svg)
  axes()
  draw()

  function axes() {
    const choice = columns.length > 1
      ? h('label', {}, 'Along ', h('select', { id: 'along', onchange: event => { along = event.target.value; axes(); draw() } }, columns.map(c => h('option', { value: c.name, selected: c.name === along }, c.name))))
      : null
    const others = columns.filter(c => c.name !== along).map((c, i) => {
      const value = h('output', {}, number(fixed[c.name]))
      return slide(c.name, value, h('input', { type: 'range', id: `fixed-${i}`, min: c.low, max: c.high, step: 'any', value: fixed[c.name], oninput: event => { fixed[c.name] = Number(event.target.value); value.textContent = number(fixed[c.name]); draw() } }))
    })
    const words = first.columns.filter(c => c.values).map((c, i) => {
      const select = h('select', { id: `word-${i}`, onchange: event => { fixed[c.name] = event.target.value; draw() } }, c.values.map(v => h('option', { value: v, selected: v === fixed[c.name] }, String(v))))
      return h('label', {}, `${c.name} `, select)
    })
    sliders.replaceChildren(...[choice, ...others, ...words, slide('Width of the band', shown, slider)].filter(Boolean))
  }

  function slide(name, value, input) {
    return h('div', { className: 'slide' }, h('label', { htmlFor: input.id }, name), value, input)
  }

  function column() { return columns.find(c => c.name === along) }
  function step(i) { return column().low + i / (GRID - 1) * (column().high - column().low) }
  function range() {
    const all = points.map(p => p.row[first.target.name])
    return [Math.min(first.target.low, ...all), Math.max(first.target.high, ...all)]
  }
  function toX(v) { return LEFT + (v - column().low) / (column().high - column().low) * (width - LEFT - RIGHT) }
  function fromX(x) { return column().low + (x - LEFT) / (width - LEFT - RIGHT) * (column().high - column().low) }
  function toY(v) { const [low, high] = range(); return TOP + (high - v) / (high - low) * (height - TOP - BOTTOM) }
  function fromY(y) { const [low, high] = range(); return high - (y - TOP) / (height - TOP - BOTTOM) * (high - low) }

  async function look(pane) {
    const rows = Array.from({ length: GRID }, (_, i) => ({ ...fixed, [along]: step(i) }))
    try {
      const found = await pane.task.predict({ rows }, level)
      pane.band = found.predictions
    } catch (error) { if (error.status) problem.textContent = error.message }
    render()
  }

  function draw() { for (const pane of panes) pane.look(); render() }

  async function recall() {
    try { points = JSON.parse(localStorage.getItem(`metavib:points:${panes.map(p => p.task.name)}`)) || [] } catch { points = [] }
    const known = await Promise.all(panes.map(p => p.task.info()))
    if (known.some((info, i) => info.points !== learned(panes[i]).length)) await restart() // changed elsewhere
  }

  function remember() {
    try { localStorage.setItem(`metavib:points:${panes.map(p => p.task.name)}`, JSON.stringify(points)) } catch { /* no room */ }
  }

  /** The points that a model believed. */
  function learned(pane) { return points.filter(p => !p.without.includes(pane.model.name)) }

  async function each(work) {
    problem.textContent = ''
    remember()
    render()
    try { await Promise.all(panes.map(work)) } catch (error) { problem.textContent = error.message }
    remember()
    draw()
  }

  function add(x, y) {
    const row = { ...fixed, [along]: Number(x.toPrecision(6)), [first.target.name]: Number(y.toPrecision(6)) }
    const point = { row, without: [] }
    points.push(point)
    return each(async pane => { if ((await pane.task.update({ rows: [row] })).left_out) point.without.push(pane.model.name) })
  }

  function forget(point) {
    if (!point) return undefined
    const those = panes.filter(pane => learned(pane).includes(point))
    points = points.filter(p => p !== point)
    return each(pane => those.includes(pane) ? pane.task.forget({ rows: [point.row] }) : null)
  }

  async function restart() {
    for (const pane of panes) {
      pane.task.remove()
      pane.task = await Task.begin(pane.model, 'curves')
    }
    points = []
    remember()
    draw()
  }

  function clicked(pane, event) {
    const box = pane.svg.getBoundingClientRect()
    const x = (event.clientX - box.left) / box.width * width
    const y = (event.clientY - box.top) / box.height * height
    const near = points.map(p => ({ p, d: Math.hypot(toX(p.row[along]) - x, toY(p.row[first.target.name]) - y) })).sort((a, b) => a.d - b.d)[0]
    if (near && near.d < 12) forget(near.p)
    else if (x >= LEFT && x <= width - RIGHT && y >= TOP && y <= height - BOTTOM) add(fromX(x), fromY(y))
  }

  function keyed(pane, event) {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key]
    if (move) {
      const [low, high] = range()
      at ||= [(column().low + column().high) / 2, (low + high) / 2]
      const by = event.shiftKey ? 10 : 50
      at = [Math.min(column().high, Math.max(column().low, at[0] + move[0] * (column().high - column().low) / by)), Math.min(high, Math.max(low, at[1] + move[1] * (high - low) / by))]
    } else if (event.key === 'Enter' && at) add(...at)
    else if (event.key === 'Backspace') forget(points.at(-1))
    else return
    event.preventDefault()
    render()
  }

  function render() {
    for (const pane of panes) paint(pane)
    undo.disabled = clear.disabled = !points.length
    const text = sentence()
    if (said.textContent !== text) said.textContent = text
  }

  function sentence() {
    const band = panes[0]?.band
    if (!points.length) return 'Nothing seen yet: every curve it was trained on is still possible.'
    if (!band) return '…'
    const width = band.reduce((sum, b) => sum + b.high - b.low, 0) / band.length
    const [low, high] = range()
    const share = width / (high - low)
    const out = points.filter(p => p.without.length).length
    const count = `${points.length} ${points.length === 1 ? 'point' : 'points'}` + (out ? `, ${out} left out, which cannot be right beside all else` : '')
    if (at) {
      const here = band[Math.round((at[0] - column().low) / (column().high - column().low) * (GRID - 1))]
      return `${count}. At ${along} = ${number(at[0])}: ${number(here.mean)}, between ${number(here.low)} and ${number(here.high)}.`
    }
    if (share > 0.6) return `${count}: still very open.`
    if (share > 0.25) return `${count}: the shape is coming out.`
    return `${count}: it has a clear idea of this curve.`
  }

  function paint(pane) {
    const [low, high] = range()
    const parts = []
    for (const v of ticks(low, high)) parts.push(s('line', { class: 'axis', x1: LEFT, x2: width - RIGHT, y1: toY(v), y2: toY(v) }), s('text', { x: LEFT - 6, y: toY(v) + 4, 'text-anchor': 'end' }, number(v)))
    for (const v of ticks(column().low, column().high)) parts.push(s('text', { x: toX(v), y: height - BOTTOM + 18, 'text-anchor': 'middle' }, number(v)))
    parts.push(s('text', { x: width - RIGHT, y: height - BOTTOM - 6, 'text-anchor': 'end' }, along))
    const inside = y => Math.min(height - BOTTOM, Math.max(TOP, y))
    if (pane.band) {
      const xs = pane.band.map((_, i) => toX(step(i)).toFixed(1))
      const line = key => pane.band.map((b, i) => `${xs[i]},${inside(toY(key(b))).toFixed(1)}`)
      const ribbon = (a, b) => `M${line(a).join('L')}L${line(b).reverse().join('L')}Z`
      parts.push(s('path', { class: 'band', d: ribbon(b => b.high, b => b.low) }))
      parts.push(s('path', { class: 'sd', d: ribbon(b => b.mean + b.sd, b => b.mean - b.sd) }))
      parts.push(s('path', { class: 'mean', d: `M${line(b => b.mean).join('L')}` }))
    }
    if (at && document.activeElement === pane.svg) {
      parts.push(s('line', { class: 'hair', x1: toX(at[0]), x2: toX(at[0]), y1: TOP, y2: height - BOTTOM }), s('circle', { class: 'here', cx: toX(at[0]), cy: toY(at[1]), r: 6 }))
    }
    for (const p of points) parts.push(s('circle', { class: p.without.includes(pane.model.name) ? 'dot out' : 'dot', cx: toX(p.row[along]), cy: toY(p.row[first.target.name]), r: 6 }))
    pane.svg.setAttribute('viewBox', `0 0 ${width} ${height}`)
    pane.svg.replaceChildren(...parts)
    pane.svg.setAttribute('aria-label', `Predictions of ${pane.model.name} after ${points.length} points`)
  }
}

function ticks(low, high) {
  const raw = (high - low) / 5
  const power = 10 ** Math.floor(Math.log10(raw))
  const size = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw)
  const found = []
  for (let v = Math.ceil(low / size) * size; v <= high + 1e-9; v += size) found.push(Math.abs(v) < 1e-9 * size ? 0 : v)
  return found
}
