// A user of the MCP Inspector in Chromium: `inspector.mjs URL TEXT` opens the page of the Inspector, connects
// its only server, signs in on the way, opens the tools, and ends once the page shows the text.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const [url, text] = process.argv.slice(2);
const browser = spawn(
    'chromium',
    [
        ...['--headless=new', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'],
        ...['--disable-component-update', '--host-resolver-rules=MAP * 127.0.0.1', '--remote-debugging-port=0'],
        ...[`--user-data-dir=${process.env.HOME}/chromium`, 'about:blank'],
    ],
    { stdio: ['ignore', 'ignore', 'pipe'] },
);
process.on('exit', () => browser.kill());

const debugging = await new Promise((resolve, reject) => {
    browser.on('exit', () => reject(new Error('chromium has ended')));
    createInterface(browser.stderr).on('line', (line) => {
        const address = line.match(/DevTools listening on ws:\/\/([^/]+)/)?.[1];
        if (address) resolve(address);
    });
});
const pages = await (await fetch(`http://${debugging}/json/list`)).json();
const socket = new WebSocket(pages.find((page) => page.type === 'page').webSocketDebuggerUrl);
await new Promise((resolve) => (socket.onopen = resolve));
const waiting = new Map();
socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    waiting.get(message.id)?.(message.result ?? {});
};
const send = (method, params) =>
    new Promise((resolve) => {
        const id = waiting.size + 1;
        waiting.set(id, resolve);
        socket.send(JSON.stringify({ id, method, params }));
    });

// Runs this in the page until it is true. A page that is left meanwhile has no result.
const until = async (expression) => {
    for (;;) {
        const { result } = await send('Runtime.evaluate', { expression, returnByValue: true });
        if (result?.value === true) return;
        await sleep(50);
    }
};

const clicked = (element) => `(() => { const e = ${element}; e?.click(); return Boolean(e); })()`;
await send('Page.navigate', { url });
await until(clicked(`document.querySelector('input[role=switch][aria-label^="Connect"]')`));
await until(`/^Connected$/m.test(document.body?.innerText)`);
await until(clicked(`[...document.querySelectorAll('label')].find((label) => label.innerText === 'Tools')`));
await until(`document.body.innerText.includes(${JSON.stringify(text)})`);
console.log(JSON.stringify({ saw: 'tools' }));
process.exit();
