// A drafter goes and comes back while the page is open: each sight of the notice is one line.

import { fill, open, settled, unlock, withBrowser } from "./browser.mjs";

const [url, key] = process.argv.slice(2);

await withBrowser(async (browser) => {
  const { page } = await open(browser, url);
  await unlock(page, key);
  console.log("watching");
  await page.locator("#notice").waitFor({ state: "visible" });
  console.log(await page.textContent("#notice"));
  await fill(page, { tokens: 16 });
  await page.click("#run");
  await page.waitForFunction(() => document.querySelectorAll(".strip button").length);
  await settled(page);
  console.log(JSON.stringify(await page.locator(".output .facts").first().textContent()));
  await page.locator("#notice").waitFor({ state: "hidden" });
  console.log("hidden");
});
