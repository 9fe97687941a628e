// Drop pictures or a table, see predictions with their doubt, correct one and see the rest change.

import { Passing, latest } from './api.js'
import { choose, h, number, percent, s } from './dom.js'

const TOGETHER = 24 // pictures of one request
const ROWS = 500 // of a table that are shown

export function collections(room, models) {
  let model = models[0]
  const holder = h('div', {})
  const select = h('select', { id: 'collection-model', onchange: () => { model = models.find(m => m.name === select.value); open() } }, models.map(m => h('option', { value: m.name }, m.name)))
  room.replaceChildren(h('div', { className: 'row under' }, models.length > 1 ? h('label', {}, 'Model ', select) : null), holder)
  open()

  function open() { // a panel of its own each time: answers that one of another model still waits for go nowhere
    const panel = h('div', {})
    holder.replaceChildren(panel)
    model.form === 'pictures' ? pictures(panel, model) : table(panel, model)
  }
}

function dropzone(text, label, take, properties) {
  const over = on => event => { event.preventDefault(); zone.classList.toggle('over', on) }
  const zone = h('div', { className: 'drop', ondragover: over(true), ondragleave: over(false), ondrop: async event => { over(false)(event); take(await dropped(event.dataTransfer)) } },
    h('p', {}, text),
    h('div', { className: 'row' }, ...label.map(([name, accept, more]) => h('button', { textContent: name, onclick: async () => take((await choose(accept, more)).map(file => ({ file, path: file.webkitRelativePath || file.name }))) }))))
  Object.assign(zone, properties)
  return zone
}

/** The files of a drop, those in folders included, each with its path. */
async function dropped(transfer) {
  const entries = [...transfer.items].map(item => item.webkitGetAsEntry?.()).filter(Boolean)
  if (!entries.length) return [...transfer.files].map(file => ({ file, path: file.name }))
  const found = []
  async function walk(entry, path) {
    if (entry.isFile) found.push({ file: await new Promise((done, failed) => entry.file(done, failed)), path: path + entry.name })
    else {
      const reader = entry.createReader()
      for (;;) {
        const part = await new Promise((done, failed) => reader.readEntries(done, failed))
        if (!part.length) break
        for (const one of part) await walk(one, `${path}${entry.name}/`)
      }
    }
  }
  for (const entry of entries) await walk(entry, '')
  return found
}

const asText = file => new Promise((done, failed) => {
  const reader = new FileReader()
  reader.onload = () => done(reader.result)
  reader.onerror = () => failed(new Error(`${file.name} could not be read.`))
  reader.readAsDataURL(file)
})

// Pictures

function pictures(panel, model) {
  const said = h('p', { className: 'verdict', role: 'status', id: 'pictures-said' })
  const problem = h('p', { className: 'problem', role: 'alert' })
  const tiles = h('ul', { className: 'tiles', id: 'tiles' })
  const names = h('datalist', { id: 'labels' })
  let items = [] // { name, url, label: learned or null, found }
  const task = new Passing(model, 'pictures')
  let classes = []
  panel.replaceChildren(
    h('p', { className: 'intro' }, 'Drop a folder of pictures. Those in subfolders are learned, with the folder’s name as their class; all others are classified. Correct one, and the rest changes with it.'),
    dropzone('Drop pictures or a folder here', [['Choose a folder', '', { webkitdirectory: true }], ['Choose pictures', 'image/png,image/jpeg,image/webp,image/bmp', { multiple: true }]], take, { id: 'drop' }),
    said, problem, names, tiles)

  async function take(files) {
    problem.textContent = ''
    const usable = files.filter(f => /\.(png|jpe?g|webp|bmp)$/i.test(f.path))
    panel.querySelector('.drop').classList.add('small')
    if (!usable.length) { problem.textContent = 'There are no PNG, JPEG, WebP or BMP pictures among these files.'; return }
    const depth = Math.max(...usable.map(f => f.path.split('/').length))
    said.textContent = `Reading ${usable.length} pictures …`
    const fresh = []
    for (const { file, path } of usable) {
      const parts = path.split('/')
      fresh.push({ name: path, url: await asText(file), label: parts.length === depth && depth > 2 || parts.length === 2 && depth === 2 && files.length > 1 && new Set(usable.map(f => f.path.split('/')[0])).size > 1 ? parts.at(-2) : null })
    }
    items.push(...fresh)
    const known = fresh.filter(item => item.label !== null)
    try {
      for (let i = 0; i < known.length; i += TOGETHER) {
        const part = known.slice(i, i + TOGETHER)
        classes = (await task.update({ pictures: part.map(item => item.url), labels: part.map(item => item.label) })).classes
      }
    } catch (error) { problem.textContent = error.message }
    await look()
  }

  const look = latest(async () => {
    const open = items.filter(item => item.label === null)
    if (classes.length) {
      try {
        for (let i = 0; i < open.length; i += TOGETHER) {
          const part = open.slice(i, i + TOGETHER)
          const answer = await task.predict({ pictures: part.map(item => item.url) })
          part.forEach((item, j) => {
            const p = answer.predictions[j]
            item.changed = item.found && item.found.label !== p.label
            item.found = { label: p.label, share: Math.max(...p.probabilities), entropy: p.entropy }
          })
        }
      } catch (error) { problem.textContent = error.message }
    } else open.forEach(item => { item.found = null })
    show()
  })

  async function correct(item, label) {
    label = label.trim()
    if (!label || label === item.label) return
    const before = item.label
    item.label = label
    show()
    try {
      if (before !== null) await task.forget({ pictures: [item.url], labels: [before] })
      classes = (await task.update({ pictures: [item.url], labels: [label] })).classes
    } catch (error) { item.label = before; problem.textContent = error.message }
    await look()
  }

  function show() {
    const open = items.filter(item => item.label === null)
    const sure = open.filter(item => item.found && item.found.share > 0.9).length
    said.textContent = !items.length ? '' : !classes.length
      ? 'Nothing has a class yet. Name one picture to begin.'
      : open.length ? `${items.length - open.length} learned, ${open.length} to classify; sure of ${sure}. The most doubtful come first.` : `${items.length} pictures learned. Drop others to classify them.`
    const order = [...open].sort((a, b) => (a.found?.share ?? 0) - (b.found?.share ?? 0)).concat(items.filter(item => item.label !== null))
    names.replaceChildren(...classes.map(c => h('option', { value: c.label })))
    tiles.replaceChildren(...order.map(item => {
      const grey = model.channels === 1 ? 'grey' : ''
      const input = h('input', { value: item.label ?? item.found?.label ?? '', placeholder: 'Class', onchange: event => correct(item, event.target.value) })
      input.setAttribute('list', 'labels')
      input.setAttribute('aria-label', `Class of ${item.name}`)
      const meter = h('div', { className: 'meter' }, h('span', {}))
      meter.firstChild.style.width = `${100 * (item.label !== null ? 1 : item.found?.share ?? 0)}%`
      const sureness = item.label !== null ? 'learned' : item.found ? `${percent(item.found.share)} sure` : 'unknown'
      return h('li', { className: ['card tile', item.label !== null && 'learned', item.changed && 'changed'].filter(Boolean).join(' ') },
        h('img', { src: item.url, alt: item.name, className: grey }), input, meter, h('span', { className: 'note' }, sureness), h('span', { className: 'file', title: item.name }, item.name))
    }))
    items.forEach(item => { item.changed = false })
  }
}

// Tables

function table(panel, model) {
  const said = h('p', { className: 'verdict', role: 'status', id: 'table-said' })
  const problem = h('p', { className: 'problem', role: 'alert' })
  const holder = h('div', { className: 'scroll' })
  const target = model.target.name
  const features = model.columns.map(c => c.name)
  let rows = [] // { cells, answer: as the file has it, or null; learned, out: what was learned, or left out, or null; found }
  const task = new Passing(model, 'tables')
  const five = h('button', { id: 'teach-five', textContent: 'Teach five more', onclick: () => teachSome(5) })
  five.hidden = true
  panel.replaceChildren(
    h('p', { className: 'intro' }, `Drop a CSV file ${features.length ? `with the columns ${features.join(', ')}` : 'of any columns'}; ${target} may be empty or missing. Type what you know, and see what the others become.`),
    dropzone('Drop a CSV file here', [['Choose a file', '.csv,text/csv', {}]], take, { id: 'drop' }),
    said, problem, h('div', { className: 'row' }, five), holder)

  async function take(files) {
    problem.textContent = ''
    const file = files.find(f => /\.csv$/i.test(f.path)) || files[0]
    if (!file) return
    panel.querySelector('.drop').classList.add('small')
    try { rows = read(await file.file.text()) } catch (error) { problem.textContent = error.message; return }
    const known = rows.filter(row => row.answer !== null)
    // With every answer at hand they are held back, to compare with; else those there are are what is known.
    if (known.length < rows.length && known.length) await learn(known)
    await look()
  }

  function read(text) {
    const lines = parse(text)
    const head = lines.shift()?.map(name => name.trim()) || []
    const missing = features.filter(name => !head.includes(name))
    if (missing.length) throw new Error(`The file has no column ${missing.join(', ')}; its columns are ${head.join(', ')}.`)
    if (!lines.length) throw new Error('The file has no rows.')
    return lines.map(line => {
      const cells = Object.fromEntries(features.map(name => [name, value(line[head.indexOf(name)], name, line.number)]))
      const answer = head.includes(target) ? line[head.indexOf(target)]?.trim() : ''
      return { cells, answer: answer ? value(answer, target, line.number) : null, learned: null, out: null, found: null }
    })
  }

  function value(text, name, line) {
    const found = text?.trim() ? Number(text) : NaN
    return Number.isFinite(found) ? found : text?.trim() ? text.trim() : (() => { throw new Error(`Line ${line} has no value in the column ${name}.`) })()
  }

  async function learn(some, values = some.map(row => row.answer)) {
    try {
      const { left_out: out = [] } = await task.update({ rows: some.map((row, i) => ({ ...row.cells, [target]: values[i] })) })
      some.forEach((row, i) => { [row.learned, row.out] = out.includes(i + 1) ? [null, values[i]] : [values[i], null] })
    } catch (error) { problem.textContent = error.message }
  }

  async function teachSome(count) {
    const open = rows.filter(row => row.learned === null && row.answer !== null && row.out === null)
    const some = Array.from({ length: Math.min(count, open.length) }, (_, i) => open[Math.floor((i + 0.5) * open.length / Math.min(count, open.length))])
    if (some.length) await learn(some)
    await look()
  }

  async function correct(row, text) {
    problem.textContent = ''
    const given = text.trim() === '' ? null : Number.isFinite(Number(text)) ? Number(text) : text.trim()
    if (typeof given === 'string' && model.outputs === 'real') { problem.textContent = `${text} is no number.`; return }
    try {
      if (row.learned !== null) await task.forget({ rows: [{ ...row.cells, [target]: row.learned }] })
      row.learned = row.out = null
      if (given !== null) await learn([row], [given])
    } catch (error) { problem.textContent = error.message }
    await look()
  }

  const look = latest(async () => {
    try {
      const shown = rows.slice(0, ROWS)
      if (shown.length) {
        const answer = await task.predict({ rows: shown.map(row => row.cells) })
        shown.forEach((row, i) => { row.found = answer.predictions[i]; row.classes = answer.classes })
      }
    } catch (error) { problem.textContent = error.message }
    show()
  })

  function show() {
    if (!rows.length) { holder.replaceChildren(); return }
    const open = rows.filter(row => row.learned === null)
    const real = model.outputs === 'real'
    const held = open.filter(row => row.answer !== null && row.found && row.out === null)
    const out = rows.flatMap((row, i) => row.out === null ? [] : [i + 1])
    five.hidden = !held.length
    const inside = held.filter(row => real ? row.answer >= row.found.low && row.answer <= row.found.high : String(row.answer) === String(row.found.label)).length
    said.textContent = `${rows.length - open.length} of ${rows.length} rows learned.` + (!out.length ? '' : ` Left out, since ${target} cannot be right there beside all other rows: ${out.length > 1 ? 'rows' : 'row'} ${out.slice(0, 10).join(', ')}${out.length > 10 ? ', …' : ''}.`) + (!held.length ? '' : real ? ` Of the ${held.length} others, ${inside} lie within their 95 % interval.` : ` Of the ${held.length} others, ${inside} are recognised.`) + (rows.length > ROWS ? ` The first ${ROWS} are shown.` : '')
    const shown = rows.slice(0, ROWS)
    const all = shown.flatMap(row => [row.found?.low, row.found?.high, known(row)]).filter(Number.isFinite)
    const [low, high] = [Math.min(...all), Math.max(...all)]
    holder.replaceChildren(h('table', { id: 'rows' },
      h('thead', {}, h('tr', {}, ...features.map(name => h('th', { scope: 'col' }, name)), h('th', { scope: 'col' }, `${target}, expected`), h('th', { scope: 'col' }, real ? '95 %' : 'probability'), h('th', { scope: 'col' }, `${target}, known`))),
      h('tbody', {}, shown.map((row, i) => {
        const input = h('input', { inputMode: model.outputs === 'real' ? 'decimal' : 'text', value: row.learned ?? '', placeholder: row.answer === null ? '' : `(${row.answer})`, onchange: event => correct(row, event.target.value) })
        input.setAttribute('aria-label', `${target} of row ${i + 1}`)
        return h('tr', { className: row.learned !== null ? 'learned' : '' }, ...features.map(name => h('td', {}, typeof row.cells[name] === 'number' ? number(row.cells[name], 4) : row.cells[name])),
          h('td', {}, row.found ? real ? `${number(row.found.mean)} ± ${number(row.found.sd, 2)}` : String(row.found.label) : '–'),
          h('td', {}, row.found ? real ? whisker(row, low, high) : percent(Math.max(...row.found.probabilities)) : '–'),
          h('td', {}, input, row.out === null ? null : h('span', { className: 'note' }, ` ${row.out} left out`)))
      }))))
  }

  /** What is known of a row, whether it was learned or is held back; nothing of one that was left out. */
  function known(row) { return row.learned ?? (row.out === null ? row.answer : null) }

  function whisker(row, low, high) {
    const at = v => 6 + 164 * (v - low) / (high - low || 1)
    const text = `${number(row.found.low)} to ${number(row.found.high)}`
    return s('svg', { class: 'whisker', viewBox: '0 0 176 22', role: 'img', 'aria-label': text }, s('title', {}, text),
      s('rect', { x: at(row.found.low), width: Math.max(1, at(row.found.high) - at(row.found.low)), y: 7, height: 8, rx: 4 }),
      s('line', { x1: at(row.found.mean), x2: at(row.found.mean), y1: 5, y2: 17 }),
      Number.isFinite(known(row)) ? s('circle', { cx: at(known(row)), cy: 11, r: 3.5 }) : null)
  }
}

/** Rows of a CSV file, with the number of the line each begins in: quotes, commas or semicolons. */
function parse(text) {
  const comma = text.slice(0, text.search(/\r?\n|$/)).includes(';') ? ';' : ','
  const begin = number => Object.assign([], { number })
  let line = 1
  const rows = [begin(line)]
  let cell = ''
  let quoted = false
  for (let i = 0; i < text.length; i++) {
    const c = text[i]
    if (c === '\n') line++
    if (quoted) {
      if (c === '"' && text[i + 1] === '"') { cell += c; i++ } else if (c === '"') quoted = false
      else cell += c
    } else if (c === '"') quoted = true
    else if (c === comma) { rows.at(-1).push(cell); cell = '' } else if (c === '\n') { rows.at(-1).push(cell.replace(/\r$/, '')); cell = ''; rows.push(begin(line)) } else cell += c
  }
  rows.at(-1).push(cell.replace(/\r$/, ''))
  return rows.filter(row => row.some(one => one.trim()))
}
