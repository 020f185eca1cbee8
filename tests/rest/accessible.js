// What is wrong with the page that is shown, by rules of WCAG 2.2 that a program can check.
() => {
  const wrong = [];
  const seen = (it) => it.getClientRects().length > 0 && getComputedStyle(it).visibility === "visible";
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const told = (it) => `${it.tagName.toLowerCase()} "${it.textContent.trim().slice(0, 40)}"`;

  if (!document.documentElement.lang) wrong.push("no language");
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the screen: ${document.documentElement.scrollWidth}`);
  if (all("main").length !== 1) wrong.push("not one main");
  const levels = all("h1, h2, h3, h4").map((it) => Number(it.tagName[1]));
  if (levels.filter((it) => it === 1).length !== 1) wrong.push("not one h1");
  levels.forEach((it, i) => { if (i && it > levels[i - 1] + 1) wrong.push(`h${it} after h${levels[i - 1]}`); });

  const ids = [...document.querySelectorAll("[id]")].map((it) => it.id);
  ids.filter((it, i) => ids.indexOf(it) !== i).forEach((it) => wrong.push(`id ${it} twice`));
  for (const it of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    const wanted = (it.getAttribute("aria-labelledby") ?? it.getAttribute("aria-describedby")).split(" ");
    wanted.filter((id) => !ids.includes(id)).forEach((id) => wrong.push(`${told(it)}: no ${id}`));
  }
  for (const it of all("a, button, summary")) {
    if (!(it.getAttribute("aria-label") ?? it.textContent).trim()) wrong.push(`${told(it)} has no name`);
    if (it.tagName === "A" && !it.getAttribute("href")) wrong.push(`${told(it)} leads nowhere`);
  }
  for (const it of all("input, select, textarea")) if (!it.labels.length) wrong.push(`${it.id} has no label`);
  for (const it of all("nav, [role=region], [role=group]")) {
    if (!it.hasAttribute("aria-label") && !it.hasAttribute("aria-labelledby")) wrong.push(`${it.tagName} has no label`);
  }
  for (const it of all("table")) if (!it.caption?.textContent) wrong.push("a table has no caption");
  for (const it of all("button, summary, nav a, input:not([type=checkbox])")) {
    const { width, height } = it.getBoundingClientRect();
    if (Math.min(width, height) < 22) wrong.push(`${told(it)} is small: ${width} x ${height}`);
  }

  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const mixed = (colours) => {
    pen.clearRect(0, 0, 1, 1);
    for (const it of colours) {
      pen.fillStyle = it;
      pen.fillRect(0, 0, 1, 1);
    }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((it) => it / 255).map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const it of all("main *, header *, footer *")) {
    if (![...it.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    if (["TITLE", "title"].includes(it.tagName)) continue;
    const style = getComputedStyle(it);
    const grounds = [];
    const box = it.closest(".node")?.querySelector(".box");
    if (box) grounds.push(getComputedStyle(box).fill);
    for (let at = it; at; at = at.parentElement) grounds.push(getComputedStyle(at).backgroundColor);
    grounds.reverse();
    const ground = mixed(grounds);
    const ink = mixed([...grounds, it instanceof SVGElement ? style.fill : style.color]);
    const [high, low] = [light(ground), light(ink)].sort((a, b) => b - a);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5 && !it.disabled) wrong.push(`${told(it)}: contrast ${contrast.toFixed(2)}`);
  }
  return [...new Set(wrong)];
}
