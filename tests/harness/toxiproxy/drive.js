// Drives a server with toxiproxy-node-client: node drive.js http://127.0.0.1:PORT LISTEN UPSTREAM
// Prints what it saw after each step as one JSON object, which the test compares.
const path = require("path");
const { Toxiproxy } = require(path.join(process.cwd(), "node_modules", "toxiproxy-node-client"));

const [url, listen, upstream] = process.argv.slice(2);
const shown = (toxic) => ({ name: toxic.name, stream: toxic.stream, toxicity: toxic.toxicity, attributes: toxic.attributes });

async function main() {
  const seen = {};
  const server = new Toxiproxy(url);
  seen.version = await server.getVersion();

  const proxy = await server.createProxy({ name: "node", listen, upstream });
  seen.created = { name: proxy.name, listen: proxy.listen, upstream: proxy.upstream, enabled: proxy.enabled };
  seen.twice = await server.createProxy({ name: "node", listen, upstream }).then(() => "created", (error) => error.message);

  const toxic = await proxy.addToxic({
    name: "slow", type: "latency", stream: "upstream", toxicity: 0.5, attributes: { latency: 20, jitter: 3 },
  });
  seen.added = shown(toxic);
  seen.updated = shown(await toxic.update({ attributes: { latency: 30 }, toxicity: 1 }));
  seen.fetched = shown(await proxy.getToxic("slow"));
  await toxic.remove();
  seen.removed = await proxy.getToxic("slow").then(() => "there", (error) => error.message);

  seen.disabled = (await proxy.update({ enabled: false })).enabled;
  await proxy.addToxic({ name: "cut", type: "timeout", stream: "downstream", toxicity: 1, attributes: { timeout: 0 } });
  await server.reset();
  seen.afterReset = (await server.get("node")).enabled;
  seen.cut = await proxy.getToxic("cut").then(() => "there", (error) => error.message);

  const populated = await server.populate([
    { name: "node", listen, upstream },
    { name: "other", listen: "127.0.0.1:0", upstream },
  ]);
  seen.populated = Object.keys(populated).sort();
  seen.all = Object.keys(await server.getAll()).sort();
  for (const one of Object.values(await server.getAll())) await one.remove();
  seen.left = Object.keys(await server.getAll());
  console.log(JSON.stringify(seen));
}

main().catch((error) => { console.error(error); process.exit(1); });
