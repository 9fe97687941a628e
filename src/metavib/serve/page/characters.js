// Draw a character, name it, draw again, and watch the probabilities.

import { Task, latest } from './api.js'
import { choose, h, percent, save } from './dom.js'
import { DOODLES } from './doodles.js'
import { Pad, picture } from './pad.js'

const OTHER = 'something else' // a class of doodles: how likely it is that nothing taught so far fits

export async function characters(room, model) {
  const beginning = () => ({ pictures: DOODLES.map(picture), labels: DOODLES.map(() => OTHER) })
  let task = await Task.open(model, 'characters', beginning)
  let drawings = recall(task)
  let found = null // the last prediction
  let info = await task.info()
  forgetStrangers()

  const canvas = h('canvas', { className: 'pad', tabIndex: 0, role: 'img', id: 'pad' })
  canvas.setAttribute('aria-label', 'Drawing area')
  canvas.setAttribute('aria-describedby', 'pad-help')
  const verdict = h('p', { className: 'verdict', id: 'verdict', role: 'status' })
  const problem = h('p', { className: 'problem', role: 'alert' })
  const name = h('input', { id: 'name', maxLength: 60, placeholder: 'What is it?', autocomplete: 'off', list: 'names' })
  name.setAttribute('list', 'names')
  name.setAttribute('aria-label', 'Name of the class')
  const names = h('datalist', { id: 'names' })
  const teach = h('button', { className: 'primary', textContent: 'Teach', id: 'teach' })
  const clear = h('button', { textContent: 'Clear', id: 'clear', onclick: () => { pad.clear(); canvas.focus() } })
  const back = h('button', { textContent: 'Undo stroke', id: 'undo-stroke', onclick: () => pad.undo() })
  const undo = h('button', { textContent: 'Forget the last drawing', id: 'undo', onclick: () => forget(drawings.at(-1)) })
  const list = h('ul', { className: 'classes', id: 'classes' })
  list.setAttribute('aria-label', 'Classes and their probabilities')

  room.replaceChildren(
    h('p', { className: 'intro' }, 'Draw a character and give it a name. One drawing is enough to begin with: then draw another one, and see what it is taken for.'),
    h('div', { className: 'board' },
      h('div', { className: 'saying' }, verdict, problem),
      h('div', { className: 'drawing' },
        canvas,
        h('p', { className: 'note', id: 'pad-help' }, 'Mouse, finger or pen; or arrow keys, and space to lower and lift the pen.'),
        h('form', { className: 'teach', onsubmit: event => { event.preventDefault(); learn(name.value) } }, name, names, teach),
        h('div', { className: 'row under' }, clear, back)),
      h('div', { className: 'known' },
        list,
        h('div', { className: 'row' },
          undo,
          h('button', { className: 'plain', textContent: 'Export', id: 'export', onclick: exported }),
          h('button', { className: 'plain', textContent: 'Import', id: 'import', onclick: imported }),
          h('button', { className: 'plain', textContent: 'Start over', id: 'restart', onclick: restart })))))

  const look = latest(async () => {
    if (pad.empty || !taught().length) { found = null; show(); return }
    try { found = await task.predict({ pictures: [picture(pad.strokes)] }) } catch (error) { if (error.status) complain(error) }
    show()
  })
  const pad = new Pad(canvas, () => { problem.textContent = ''; look(); show() })
  show()

  function taught() { return (info.classes || []).filter(c => c.label !== OTHER) }
  function complain(error) { problem.textContent = error.message }

  /** Drawings of this page that the task does not know, because it was changed elsewhere, are let go. */
  function forgetStrangers() {
    for (const { label, points } of info.classes || []) {
      const mine = drawings.filter(d => d.label === label)
      for (const extra of mine.slice(0, Math.max(0, mine.length - points))) drawings = drawings.filter(d => d !== extra)
    }
    const known = new Set((info.classes || []).map(c => c.label))
    drawings = drawings.filter(d => known.has(d.label))
    remember(task, drawings)
  }

  async function learn(label) {
    label = label.trim()
    if (pad.empty) { problem.textContent = 'Draw something first.'; canvas.focus(); return }
    if (!label || label === OTHER) { problem.textContent = 'Give it a name.'; name.focus(); return }
    const drawing = { label, picture: picture(pad.strokes) }
    name.value = ''
    drawings.push(drawing)
    remember(task, drawings)
    pad.clear()
    try { info = await task.update({ pictures: [drawing.picture], labels: [label] }) } catch (error) {
      drawings = drawings.filter(d => d !== drawing)
      complain(error)
    }
    remember(task, drawings)
    look()
    show()
  }

  async function forget(drawing) {
    if (!drawing) return
    drawings = drawings.filter(d => d !== drawing)
    show()
    try { info = await task.forget({ pictures: [drawing.picture], labels: [drawing.label] }) } catch (error) { complain(error) }
    remember(task, drawings)
    look()
    show()
  }

  async function exported() {
    try { save(await task.file(), 'characters.safetensors') } catch (error) { complain(error) }
  }

  async function imported() {
    const [file] = await choose('.safetensors')
    if (!file) return
    try {
      info = await task.replace(await file.arrayBuffer())
      drawings = []
      remember(task, drawings)
    } catch (error) { complain(error) }
    look()
    show()
  }

  async function restart() {
    const old = task
    try {
      task = await Task.begin(model, 'characters', beginning)
      info = await task.info()
      drawings = []
      remember(old, null)
      old.remove()
    } catch (error) { complain(error) }
    pad.clear()
    show()
  }

  function show() {
    const classes = taught()
    const shares = new Map(found ? found.classes.map((label, i) => [label, found.predictions[0].probabilities[i]]) : [])
    const other = shares.get(OTHER) ?? 0
    const order = classes.map(c => ({ ...c, share: shares.get(c.label) })).sort((a, b) => (b.share ?? 0) - (a.share ?? 0))
    speak(order, other)
    const rows = order.map((c, i) => line(c, found && i === 0 && c.share > other))
    if (found && shares.has(OTHER)) rows.push(line({ label: OTHER, share: other }, false))
    const focus = document.activeElement?.dataset?.focus
    list.replaceChildren(...rows)
    if (focus) list.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus()
    names.replaceChildren(...classes.map(c => h('option', { value: c.label })))
    undo.disabled = !drawings.length
    back.disabled = clear.disabled = pad.empty
  }

  function line({ label, share, points }, best) {
    const other = label === OTHER
    const bar = h('span', { className: 'bar' })
    bar.style.width = `${100 * (share ?? 0)}%`
    const mine = drawings.filter(d => d.label === label)
    return h('li', { className: [best && 'best', other && 'other'].filter(Boolean).join(' ') },
      bar,
      h('span', { className: 'name' }, other ? 'something else' : String(label)),
      h('span', { className: 'share' }, share === undefined ? `${points} ${points === 1 ? 'drawing' : 'drawings'}` : percent(share)),
      other ? null : h('span', { className: 'shots' },
        mine.map((drawing, i) => {
          const button = h('button', { className: 'shot', title: 'Forget this drawing', onclick: () => forget(drawing) }, h('img', { src: drawing.picture, alt: '' }))
          button.setAttribute('aria-label', `Forget drawing ${i + 1} of ${label}`)
          return button
        }),
        points > mine.length ? h('span', { className: 'note' }, `${points - mine.length} learned elsewhere`) : null),
      other || pad.empty ? null : named(h('button', { className: 'add', textContent: 'It is this', onclick: () => learn(String(label)) }), `Teach this drawing as ${label}`, `add-${label}`))
  }

  function named(element, label, focus) {
    element.setAttribute('aria-label', label)
    element.dataset.focus = focus
    return element
  }

  function speak(order, other) {
    const [best, next] = order
    let doubt = false
    let words
    if (!order.length) words = pad.empty ? ['I know nothing yet. Draw something.'] : ['I know nothing yet. What is it?']
    else if (pad.empty) words = [`I know ${order.length} ${order.length === 1 ? 'class' : 'classes'}. Draw something.`]
    else if (!found || best.share === undefined) words = ['…']
    else if (other >= best.share) { doubt = true; words = ['Could be anything: it is like nothing I was shown.'] }
    else if (next && best.share < 0.6 && next.share > other) { doubt = true; words = ['Hard to say: ', h('strong', {}, String(best.label)), ' or ', h('strong', {}, String(next.label)), '.'] }
    else if (best.share < 0.75) { doubt = true; words = ['Perhaps ', h('strong', {}, String(best.label)), ', but I am not sure.'] }
    else words = [best.share > 0.95 ? 'This is ' : 'Probably ', h('strong', {}, String(best.label)), '.']
    const text = words.map(w => typeof w === 'string' ? w : w.textContent).join('')
    if (verdict.textContent !== text) verdict.replaceChildren(...words) // said once, not at every stroke
    verdict.classList.toggle('doubt', doubt)
  }
}

function recall(task) {
  try { return JSON.parse(localStorage.getItem(`metavib:drawings:${task.name}`)) || [] } catch { return [] }
}

function remember(task, drawings) {
  const place = `metavib:drawings:${task.name}`
  try { drawings ? localStorage.setItem(place, JSON.stringify(drawings)) : localStorage.removeItem(place) } catch { /* no room: they are forgotten at the next visit */ }
}
