// Pictures of the page for the documentation: a gain, wide and narrow, light and dark, and a loss.

import { fill, open, settled, withBrowser } from "./browser.mjs";

const [url, folder] = process.argv.slice(2);

const PICTURES = [
  { name: "page-light", colorScheme: "light", width: 1100 },
  { name: "page-dark", colorScheme: "dark", width: 1100 },
  { name: "page-390-light", colorScheme: "light", width: 390 },
  { name: "page-390-dark", colorScheme: "dark", width: 390 },
];

const GAIN = `class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def `;

/** Run a request and select its first round with an accepted draft. */
async function run(page, temperature, request) {
  await page.fill("#temperature", temperature);
  await fill(page, { compare: true, ...request });
  await page.click("#run");
  await settled(page);
  await page.locator(".strip button:is(.some, .all)").first().click();
}

await withBrowser(async (browser) => {
  const { page } = await open(browser, url);
  await page.waitForFunction(() => document.querySelector("#model").options.length);
  await page.setViewportSize({ width: 1100, height: 800 });
  await page.selectOption("#mode", "rejection");
  await run(page, "1.5", { text: "def main(", tokens: 40, gamma: "8", seed: "7" });
  await page.screenshot({ path: `${folder}/slower-light.png`, fullPage: true });
  await run(page, "0", { text: GAIN, tokens: 64, gamma: "6", seed: "0" });
  for (const { name, colorScheme, width } of PICTURES) {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: `${folder}/${name}.png`, fullPage: width > 400, clip: width > 400 ? undefined : { x: 0, y: 0, width, height: 1300 } });
  }
});
