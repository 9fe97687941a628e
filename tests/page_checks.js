// What tests ask of the page, as functions of nothing.
({
  /** Controls and pictures that a screen reader would have no name for. */
  nameless: () => [...document.querySelectorAll('button, input, select, canvas, svg[role=img], a, img')]
    .filter(e => e.offsetParent !== null || e instanceof SVGElement)
    .filter(e => {
      const label = e.getAttribute('aria-label') || e.innerText || e.getAttribute('alt') || e.labels?.[0]?.innerText
      return !label && e.getAttribute('alt') !== ''
    })
    .map(e => e.outerHTML.slice(0, 90)),

  /** Texts whose contrast with what is behind them is below 4.5 (WCAG AA). */
  faint: () => {
    const parse = c => (c.match(/[\d.]+/g) || []).map(Number)
    const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
    const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(c[i] / 255), 0)
    const ground = e => {
      for (; e; e = e.parentElement) {
        const c = parse(getComputedStyle(e).backgroundColor)
        if (c.length < 4 || c[3] === 1) return c
      }
      return [255, 255, 255]
    }
    return [...document.querySelectorAll('h1, h2, p, button, label, .name, .share, .note, td, th')]
      .filter(e => e.offsetParent && e.innerText.trim() && !e.disabled)
      .map(e => {
        const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x)
        return [(a + 0.05) / (b + 0.05), e.innerText.slice(0, 40)]
      })
      .filter(([ratio]) => ratio < 4.5)
  },

  /** Whether all fits into the width of the window. */
  fits: () => document.documentElement.scrollWidth <= innerWidth,

  /** The middle of the first point of a plane; asked in one step, since planes are drawn anew at any time. */
  dot: () => {
    const box = document.querySelector('#curves .dot').getBoundingClientRect()
    return [box.x + box.width / 2, box.y + box.height / 2]
  },

  /** Draws a stroke with a finger. */
  touch: () => {
    const pad = document.querySelector('#pad')
    const box = pad.getBoundingClientRect()
    const send = (type, x, y) => pad.dispatchEvent(new PointerEvent(type, {
      pointerId: 7, pointerType: 'touch', bubbles: true, clientX: box.x + x * box.width, clientY: box.y + y * box.width
    }))
    pad.setPointerCapture = () => {}
    send('pointerdown', 0.2, 0.2)
    for (let i = 0; i < 20; i++) send('pointermove', 0.2 + 0.03 * i, 0.2 + 0.02 * i)
    send('pointerup', 0.8, 0.6)
  }
})
