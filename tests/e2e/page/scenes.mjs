// What a user does on the page, and what is seen then: one scene after the other, told as one JSON object.

import { fill, open, settled, unlock, withBrowser } from "./browser.mjs";

const [url, key] = process.argv.slice(2);

const scenes = {
  /** A wrong key, then the right one; and what needs no generation. */
  async keys(browser) {
    const { page, seen } = await open(browser, url);
    await page.locator("#key-form").waitFor();
    const focused = await page.evaluate(() => document.activeElement.id);
    await page.fill("#key", "wrong");
    await page.press("#key", "Enter");
    await unlock(page, key);
    const stored = await page.evaluate(() => localStorage.length + sessionStorage.length + document.cookie.length);
    const visible = await page.locator("#key-form").isVisible();
    return { focused, stored, visible, model: await page.inputValue("#model"), ...toldBy(seen), ...(await told(page)) };
  },

  /** A prompt, with speculation and without; every card is opened. */
  async prompt(browser) {
    const { page, seen } = await open(browser, url);
    await unlock(page, key);
    await page.selectOption("#mode", "rejection");
    await fill(page, { tokens: 24, compare: true });
    await page.click("#run");
    await settled(page);
    const panes = page.locator(".output");
    const pane = panes.first();
    const cards = [];
    for (const button of await pane.locator(".strip button").all()) {
      await button.click();
      cards.push(await pane.locator(".card").evaluate(toldByCard));
    }
    return {
      titles: await panes.locator("h2").allTextContents(),
      pieces: await pane.locator(".tokens > *").evaluateAll((all) =>
        all.map((each) => ({ kind: each.classList[0], title: each.title, name: each.localName, round: Number(each.dataset.round) })),
      ),
      plain: await panes.last().locator(".tokens > *").evaluateAll((all) => all.map((each) => each.classList[0])),
      strip: await pane.locator(".strip button").allTextContents(),
      positions: await pane.locator(".by-position meter").evaluateAll((all) => all.map((each) => each.value)),
      verdict: await page.textContent("#verdict"),
      cards,
      ...toldBy(seen),
    };
  },

  /** Two turns of a chat, the first with what could be markup. */
  async chat(browser) {
    const { page, seen } = await open(browser, url);
    await unlock(page, key);
    await page.check("[value=chat]");
    for (const text of ["<b>Read</b> a file.", "Go on."]) {
      await fill(page, { text, tokens: 5 });
      await page.click("#run");
      await settled(page);
    }
    return {
      roles: await page.locator("#conversation li").evaluateAll((all) => all.map((each) => each.className)),
      first: await page.locator("#conversation li").first().textContent(),
      bold: await page.locator("#conversation b").count(),
      curl: await page.textContent("#curl"),
      ...toldBy(seen),
    };
  },

  /** No mouse: generate, stop, and walk along the rounds. */
  async keyboard(browser) {
    const { page } = await open(browser, url);
    await unlock(page, key);
    await fill(page, { tokens: 900 });
    await page.focus("#text");
    await page.keyboard.press("Control+Enter");
    await page.waitForFunction(() => document.querySelectorAll(".strip button").length > 2);
    await page.keyboard.press("Escape");
    await settled(page);
    await page.focus(".strip button");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowLeft");
    await page.keyboard.press("Enter");
    return {
      stopped: await page.textContent(".failed"),
      card: await page.textContent(".card h3"),
      marked: await page.locator(".of-selected").evaluateAll((all) => [...new Set(all.map((each) => each.dataset.round))]),
    };
  },

  /** Both colour schemes, on a screen of 390 pixels. */
  async narrow(browser) {
    const { page } = await open(browser, url, { viewport: { width: 390, height: 844 } });
    await unlock(page, key);
    await fill(page, { tokens: 8 });
    await page.click("#run");
    await settled(page);
    await page.locator(".strip button").first().click();
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    const contrasts = {};
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      contrasts[colorScheme] = await page.evaluate(leastContrast);
    }
    return { width, contrasts };
  },

};

/** The words for a speed-up, the card of a draft whose length its entropy chose, a script that is not the page's own, and the command under the outputs. */
async function told(page) {
  await fill(page, { text: "it's \"so\"", tokens: 4 });
  await page.click("#copy");
  await page.waitForFunction(() => document.querySelector("#copied").textContent);
  return page.evaluate(async () => {
    const [{ verdict }, { card }] = await Promise.all([import("/page/verdict.js"), import("/page/card.js")]);
    const side = (rate, drafts, rounds) => ({ rate, drafts, rounds, tokens: 100, first: 20, text: "x", fallbacks: new Map([["not_worth_it", 3]]) });
    const plain = side(1, 0, 100);
    const runs = [
      [[0.5, 60, 50], [0.4, 60, 50]],
      [[2, 60, 50], [2.4, 60, 50], [1.8, 60, 50]],
      [[0.97, 60, 50], [1.05, 60, 50]],
      [[2, 0, 100], [2.1, 0, 100]],
    ];
    const verdicts = runs.map((run) => {
      verdict(run.map((numbers) => ({ drafted: side(...numbers), plain })));
      return document.querySelector("#verdict").textContent;
    });
    const step = { text: "a", accepted: true, source: "model", p: 0.5, q: 0.25, u: 0.125, threshold: 1, h_norm: 0.25, gamma: 6 };
    const times = { draft_seconds: 0, network_seconds: 0, queue_seconds: 0, pass_seconds: 0 };
    const report = { base_len: 3, drafter: "model", accepted: 1, drafted: [step], gamma: 6, gamma_reason: "egag", alpha: 0.75, ...times };
    const texts = (name) => [...card(report, 1).querySelectorAll(name)].map((each) => each.textContent);
    const entropic = { head: texts("th"), cells: texts("td"), lines: texts("p") };
    const script = document.createElement("script");
    script.textContent = "window.injected = true";
    document.head.append(script);
    const curl = document.querySelector("#curl").textContent;
    return { verdicts, entropic, injected: window.injected === true, curl, copied: getSelection().toString() };
  });
}

function toldBy(seen) {
  return { errors: seen.errors, origins: [...seen.origins] };
}

/** In the page: what a card says. */
function toldByCard(card) {
  const rows = [...card.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
  const head = [...card.querySelectorAll("th")].map((cell) => cell.textContent);
  return { lines: [...card.querySelectorAll("p")].map((line) => line.textContent), head, rows };
}

/** In the page: the least contrast of a kind of token against the ground of the outputs, as WCAG 2 defines it. */
function leastContrast() {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).map((part) => part / 255);
    const [R, G, B] = [r, g, b].map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * R + 0.7152 * G + 0.0722 * B;
  };
  const ground = luminance(getComputedStyle(document.querySelector(".tokens")).backgroundColor);
  const contrasts = [...document.querySelectorAll(".legend > *")].map((each) => {
    const own = luminance(getComputedStyle(each).color);
    return (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
  });
  return Math.min(...contrasts);
}

await withBrowser(async (browser) => {
  const told = {};
  for (const [name, scene] of Object.entries(scenes)) told[name] = await scene(browser);
  console.log(JSON.stringify(told));
});
