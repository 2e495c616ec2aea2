// Pictures of the page for the documentation: wide and narrow, light and dark.

import { fill, open, settled, withBrowser } from "./browser.mjs";

const [url, folder] = process.argv.slice(2);

const PICTURES = [
  { name: "page-light", colorScheme: "light", width: 1100 },
  { name: "page-dark", colorScheme: "dark", width: 1100 },
  { name: "page-390-light", colorScheme: "light", width: 390 },
  { name: "page-390-dark", colorScheme: "dark", width: 390 },
];

await withBrowser(async (browser) => {
  const { page } = await open(browser, url);
  await page.waitForFunction(() => document.querySelector("#model").options.length);
  await page.selectOption("#mode", "rejection");
  await fill(page, { tokens: 40, seed: "7", compare: true });
  await page.click("#run");
  await settled(page);
  await page.locator(".strip button.some").first().click();
  for (const { name, colorScheme, width } of PICTURES) {
    await page.setViewportSize({ width, height: 800 });
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: `${folder}/${name}.png`, fullPage: width > 400, clip: width > 400 ? undefined : { x: 0, y: 0, width, height: 1300 } });
  }
});
