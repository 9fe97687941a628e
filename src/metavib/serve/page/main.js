// Which rooms there are, and whether the server answers.

import { connection, models } from './api.js'
import { characters } from './characters.js'
import { collections } from './collections.js'
import { curves } from './curves.js'
import { h } from './dom.js'

const tabs = [...document.querySelectorAll('[role=tab]')]
const opened = new Set()
let served = []

const rooms = {
  characters: {
    models: () => served.filter(m => m.form === 'pictures' && m.channels === 1),
    open: (room, found) => characters(room, found[0]),
    missing: 'This server has no model of characters. Start it with one to draw here: metavib serve characters.'
  },
  curves: {
    models: () => { // models of the same columns stand side by side
      const real = served.filter(m => m.form === 'rows' && m.outputs === 'real' && m.columns.some(c => !c.values))
      const key = m => JSON.stringify([m.columns.map(c => c.name), m.target.name])
      return real.filter(m => key(m) === key(real[0]))
    },
    open: curves,
    missing: 'This server has no model of curves. Start it with one to draw here: metavib train sinusoid, then metavib serve runs/sinusoid-gp-vib-0.'
  },
  collections: { models: () => served.filter(m => m.form !== 'arrays'), open: collections, missing: 'This server has no model of pictures or tables.' }
}

async function open(name, focus = false) {
  for (const tab of tabs) {
    const here = tab.id === `tab-${name}`
    tab.setAttribute('aria-selected', here)
    tab.tabIndex = here ? 0 : -1
    if (here && focus) tab.focus()
    document.getElementById(tab.getAttribute('aria-controls')).hidden = !here
  }
  history.replaceState(null, '', `#${name}`)
  if (opened.has(name)) return
  opened.add(name)
  const room = document.getElementById(name)
  const found = rooms[name].models()
  if (!found.length) { room.replaceChildren(h('p', { className: 'intro' }, rooms[name].missing)); return }
  try { await rooms[name].open(room, found) } catch (error) {
    opened.delete(name)
    room.replaceChildren(h('p', { className: 'problem', role: 'alert' }, error.message || 'The server does not answer.'), h('button', { textContent: 'Try again', onclick: () => open(name) }))
  }
}

tabs.forEach((tab, i) => {
  tab.addEventListener('click', () => open(tab.getAttribute('aria-controls')))
  tab.addEventListener('keydown', event => {
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key]
    if (to === undefined) return
    event.preventDefault()
    open(tabs[(to + tabs.length) % tabs.length].getAttribute('aria-controls'), true)
  })
})

const banner = document.getElementById('connection')
connection.addEventListener('change', ({ detail: { lost, waiting } }) => {
  banner.hidden = !lost
  banner.replaceChildren(...(lost ? [h('span', {}, 'The server does not answer. ' + (waiting ? 'What you taught it is kept here and sent as soon as it does.' : 'Trying again …'))] : []))
})

async function begin() {
  try { served = await models() } catch (error) {
    document.getElementById('main').querySelector('section:not([hidden])').replaceChildren(
      h('p', { className: 'problem', role: 'alert' }, error.message || 'The server does not answer.'), h('button', { textContent: 'Try again', onclick: begin }))
    return
  }
  const wanted = location.hash.slice(1)
  open(wanted in rooms ? wanted : Object.keys(rooms).find(name => rooms[name].models().length) || 'characters')
}

addEventListener('hashchange', () => { if (served.length && location.hash.slice(1) in rooms) open(location.hash.slice(1)) })
begin()
