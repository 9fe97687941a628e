// The service, as the page uses it: changes are repeated until they are acknowledged, and count once.

export class Problem extends Error {
  constructor(status, message) { super(message); this.status = status }
}

export const connection = new EventTarget()
let waiting = 0
let lost = false

const sleep = milliseconds => new Promise(done => setTimeout(done, milliseconds))
export const random = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), b => b.toString(16).padStart(2, '0')).join('')

function say(now) {
  lost = now
  connection.dispatchEvent(new CustomEvent('change', { detail: { lost, waiting } }))
}

async function token() {
  const dialog = document.getElementById('token')
  if (!dialog.open) dialog.showModal()
  await new Promise(done => dialog.addEventListener('close', done, { once: true }))
  sessionStorage.setItem('metavib:token', dialog.querySelector('input').value)
}

async function once(method, path, { json, file, headers = {} } = {}) {
  const all = { ...headers }
  const known = sessionStorage.getItem('metavib:token')
  if (known) all.authorization = `Bearer ${known}`
  let body
  if (json !== undefined) { body = JSON.stringify(json); all['content-type'] = 'application/json' }
  if (file !== undefined) { body = file; all['content-type'] = 'application/octet-stream' }
  const answer = await fetch(path, { method, body, headers: all, cache: 'no-store' })
  if (answer.status === 401) { await token(); return once(method, path, { json, file, headers }) }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}))
    throw new Problem(answer.status, said.error || `The server answered ${answer.status}.`)
  }
  return answer
}

const passing = error => !(error instanceof Problem) || [408, 429, 502, 503, 504].includes(error.status)

/** One request; a failed connection is told to whoever listens. */
export async function ask(method, path, options) {
  try {
    const answer = await once(method, path, options)
    if (lost) say(false)
    return answer
  } catch (error) {
    if (passing(error)) say(true)
    throw error
  }
}

/** One request that is repeated, with the same key, until the server has answered it. */
export async function insist(method, path, options = {}) {
  const headers = { 'idempotency-key': random(), ...options.headers }
  waiting++
  try {
    for (let wait = 250; ; wait = Math.min(2 * wait, 4000)) {
      try { return await ask(method, path, { ...options, headers }) } catch (error) {
        if (!passing(error)) throw error
        await sleep(wait)
      }
    }
  } finally {
    waiting--
    say(lost && waiting > 0)
  }
}

export const models = async () => (await (await ask('GET', '/v1/models')).json()).models

/** A task of a model: its changes are made one after another, in the order in which they were asked for. */
export class Task {
  constructor(model, name) { this.model = model; this.name = name; this.path = `/v1/tasks/${encodeURIComponent(name)}`; this.last = Promise.resolve() }

  /** The task that this page used last for a purpose, or a new one. */
  static async open(model, purpose, beginning) {
    const place = `metavib:task:${purpose}:${model.fingerprint.slice(0, 12)}`
    const known = localStorage.getItem(place)
    if (known) {
      const task = new Task(model, known)
      try { await task.info(); return task } catch (error) { if (error.status !== 404 && error.status !== 409) throw error }
    }
    return Task.begin(model, purpose, beginning)
  }

  /** A new task, which the next visit finds again. */
  static async begin(model, purpose, beginning) {
    const task = await Task.make(model, purpose, beginning)
    localStorage.setItem(`metavib:task:${purpose}:${model.fingerprint.slice(0, 12)}`, task.name)
    return task
  }

  static async make(model, purpose, beginning) {
    const name = `page-${purpose}-${random()}`
    const body = { model: model.name, name }
    if (beginning) body.points = beginning()
    await insist('POST', '/v1/tasks', { json: body })
    return new Task(model, name)
  }

  async info() { return (await ask('GET', this.path)).json() }
  async predict(inputs, level = 0.95) { return (await ask('POST', `${this.path}/predict`, { json: { inputs, level } })).json() }
  async file() { return (await ask('GET', `${this.path}/file`)).blob() }
  remove() { return insist('DELETE', this.path).catch(() => {}) }

  #then(work) {
    const next = this.last.catch(() => {}).then(work)
    this.last = next
    return next
  }

  update(points) { return this.#then(async () => (await insist('POST', `${this.path}/update`, { json: { points } })).json()) }
  forget(points) { return this.#then(async () => (await insist('POST', `${this.path}/forget`, { json: { points } })).json()) }
  replace(file) { return this.#then(async () => (await insist('PUT', `${this.path}/file`, { file, headers: { 'if-match': '*' } })).json()) }
}

/** A task that is made when it is first used, and that the next one of the same tab takes the place of. */
export class Passing {
  constructor(model, purpose) { this.model = model; this.purpose = purpose; this.task = null }

  #made() {
    this.task ||= (async () => {
      const place = `metavib:passing:${this.purpose}`
      const before = sessionStorage.getItem(place)
      if (before) new Task(this.model, before).remove()
      const task = await Task.make(this.model, this.purpose)
      sessionStorage.setItem(place, task.name)
      return task
    })().catch(error => { this.task = null; throw error })
    return this.task
  }

  async update(points) { return (await this.#made()).update(points) }
  async forget(points) { return (await this.#made()).forget(points) }
  async predict(inputs, level) { return (await this.#made()).predict(inputs, level) }
}

/** Runs the newest of several calls: while one is under way, only the last one asked for is remembered. */
export function latest(work) {
  let running = false
  let next = null
  return async function run(...values) {
    next = values
    if (running) return
    running = true
    try { while (next) { const now = next; next = null; await work(...now) } } finally { running = false }
  }
}
