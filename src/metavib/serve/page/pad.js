// A square to draw in, with mouse, finger, pen or keys; and the drawing as the picture a model sees.

const PICTURE = 112 // pixels a side: four times what characters are brought to
const LINE = 8.6 // their strokes are two of 28 pixels wide
const EXTENT = 0.66 // the larger side of a drawing, of the picture's

function trace(context, strokes, at, width) {
  context.lineCap = context.lineJoin = 'round'
  context.lineWidth = width
  for (const stroke of strokes) {
    const points = stroke.map(at)
    context.beginPath()
    context.moveTo(...points[0])
    if (points.length === 1) context.lineTo(points[0][0] + 0.01, points[0][1])
    for (let i = 1; i < points.length; i++) {
      const [x, y] = points[i]
      const [u, v] = points[i - 1]
      context.quadraticCurveTo(u, v, (u + x) / 2, (v + y) / 2)
      if (i === points.length - 1) context.lineTo(x, y)
    }
    context.stroke()
  }
}

/** Black on white, centred, of one size and one thickness, whatever way it was drawn. */
export function picture(strokes) {
  const xs = strokes.flat().map(p => p[0])
  const ys = strokes.flat().map(p => p[1])
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)]
  const scale = Math.min(EXTENT * PICTURE / Math.max(right - left, bottom - top, 0.15), 3 * PICTURE)
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = PICTURE
  const context = canvas.getContext('2d')
  context.fillStyle = '#fff'
  context.fillRect(0, 0, PICTURE, PICTURE)
  context.strokeStyle = '#000'
  trace(context, strokes, ([x, y]) => [PICTURE / 2 + scale * (x - (left + right) / 2), PICTURE / 2 + scale * (y - (top + bottom) / 2)], LINE)
  return canvas.toDataURL('image/png')
}

export class Pad {
  constructor(canvas, changed) {
    this.canvas = canvas
    this.changed = changed
    this.strokes = []
    this.cursor = null // where the keys' pen is, in shares of the side
    this.down = false
    this.pointer = null
    canvas.addEventListener('pointerdown', event => this.#start(event))
    canvas.addEventListener('pointermove', event => this.#move(event))
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, event => this.#end(event))
    canvas.addEventListener('keydown', event => this.#key(event))
    canvas.addEventListener('blur', () => { this.cursor = null; this.down = false; this.show() })
    new ResizeObserver(() => this.show()).observe(canvas)
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.show())
  }

  get empty() { return !this.strokes.length }
  clear() { this.strokes = []; this.down = false; this.show(); this.changed() }
  undo() { this.strokes.pop(); this.down = false; this.show(); this.changed() }
  set(strokes) { this.strokes = strokes; this.show(); this.changed() }

  #at(event) {
    const box = this.canvas.getBoundingClientRect()
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height]
  }

  #start(event) {
    if (event.button) return
    event.preventDefault()
    this.canvas.focus({ preventScroll: true })
    this.canvas.setPointerCapture(event.pointerId)
    this.pointer = event.pointerId
    this.cursor = null
    this.strokes.push([this.#at(event)])
    this.show()
    this.changed()
  }

  #move(event) {
    if (event.pointerId !== this.pointer) return
    for (const one of event.getCoalescedEvents?.() || [event]) this.strokes.at(-1).push(this.#at(one))
    this.show()
    this.changed()
  }

  #end(event) {
    if (event.pointerId !== this.pointer) return
    this.pointer = null
    this.changed()
  }

  #key(event) {
    const step = event.shiftKey ? 0.1 : 0.04
    const move = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[event.key]
    if (!move && event.key !== ' ') return
    event.preventDefault()
    this.cursor ||= [0.5, 0.5]
    if (move) this.cursor = this.cursor.map((c, i) => Math.min(0.97, Math.max(0.03, c + move[i])))
    else this.down = !this.down
    if (this.down) {
      if (move) this.strokes.at(-1).push([...this.cursor])
      else this.strokes.push([[...this.cursor]])
      this.changed()
    }
    this.show()
  }

  show() {
    const { canvas } = this
    const side = Math.max(1, Math.round(canvas.clientWidth * devicePixelRatio))
    if (canvas.width !== side) canvas.width = canvas.height = side
    const style = getComputedStyle(canvas)
    const context = canvas.getContext('2d')
    context.clearRect(0, 0, side, side)
    context.strokeStyle = style.getPropertyValue('--ink')
    trace(context, this.strokes, ([x, y]) => [x * side, y * side], side / 24)
    if (this.cursor) {
      const [x, y] = this.cursor.map(c => c * side)
      context.beginPath()
      context.arc(x, y, side / 36, 0, 7)
      context.lineWidth = side / 150
      context.strokeStyle = context.fillStyle = style.getPropertyValue('--accent')
      if (this.down) context.fill()
      context.stroke()
    }
  }
}
