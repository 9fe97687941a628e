// Elements, in few words.

const SVG = 'http://www.w3.org/2000/svg'

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value)
    else if (name in element && !(element instanceof SVGElement) && name !== 'list') element[name] = value
    else element.setAttribute(name, value === true ? '' : value)
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false))
  return element
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children)
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children)

/** A number as people write it. */
export function number(value, digits = 3) {
  if (!Number.isFinite(value)) return '–'
  const text = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(Number(value.toPrecision(digits)))
  return text.replace('-', '−')
}

export const percent = share => share > 0 && share < 0.01 ? '<1 %' : share < 1 && share > 0.99 ? '>99 %' : `${Math.round(100 * share)} %`

export function save(blob, name) {
  const link = h('a', { href: URL.createObjectURL(blob), download: name })
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10000)
}

export const choose = (accept, properties = {}) => new Promise(done => {
  const input = h('input', { type: 'file', accept, ...properties })
  input.addEventListener('change', () => done([...input.files]), { once: true })
  input.click()
})
