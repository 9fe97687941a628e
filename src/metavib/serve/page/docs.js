// The OpenAPI document for people: every address, with a command that works as pasted.

import { h } from './dom.js'

const room = document.getElementById('api')
const quote = text => `'${text.replaceAll("'", `'\\''`)}'`
const short = text => text.length > 700 ? `${text.slice(0, 700)} …` : text

function commands(path, method, operation) {
  const task = operation.parameters?.find(p => p.name === 'task')?.examples || {}
  const bodies = operation.requestBody?.content['application/json']?.examples
  const file = operation.requestBody?.content['application/octet-stream']
  const names = Object.keys(bodies || task)
  return (names.length ? names : ['']).map(name => {
    const place = Object.keys(task).find(key => name === key || name.startsWith(`${key}-`))
    const address = location.origin + path.replace('{task}', encodeURIComponent(task[place]?.value || 'TASK'))
    const parts = ['curl', method === 'get' ? '' : `-X ${method.toUpperCase()}`, quote(address)]
    if (bodies) parts.push(`-H 'Content-Type: application/json' -d ${quote(JSON.stringify(bodies[name].value))}`)
    if (file) parts.push(`-H 'Content-Type: application/octet-stream' -H 'If-Match: *' --data-binary @task.safetensors`)
    if (path.endsWith('/file') && method === 'get') parts.push('-o task.safetensors')
    return { name, text: parts.filter(Boolean).join(' ') }
  })
}

function command({ name, text }) {
  const copy = h('button', { textContent: 'Copy', onclick: async () => { await navigator.clipboard?.writeText(text); copy.textContent = 'Copied' } })
  return h('div', {}, h('div', { className: 'row spread' }, h('span', { className: 'note' }, name), copy), h('pre', { tabIndex: 0 }, short(text)))
}

try {
  const found = await (await fetch('/openapi.json')).json()
  const articles = Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) =>
    h('article', { className: 'card' },
      h('h2', {}, h('span', { className: 'verb' }, method), h('code', {}, path)),
      h('p', {}, operation.description || operation.summary),
      ...(operation.parameters || []).filter(p => p.name !== 'task').map(p => h('p', { className: 'note' }, h('code', {}, p.name), ` (${p.in}): ${p.description || ''}`)),
      ...commands(path, method, operation).map(command))))
  room.replaceChildren(...found.info.description.split('\n\n').map(text => h('p', { className: 'intro' }, text)), ...articles)
} catch {
  room.replaceChildren(h('p', { className: 'problem' }, 'The server does not answer.'))
}
room.removeAttribute('aria-busy')
