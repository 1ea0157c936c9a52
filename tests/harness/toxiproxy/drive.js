// Drives a server with toxiproxy-node-client: node drive.js http://127.0.0.1:PORT LISTEN UPSTREAM
// Prints the result of each step as one JSON object, which the test compares.
const path = require("path");
const { Toxiproxy } = require(path.join(process.cwd(), "node_modules", "toxiproxy-node-client"));

const [url, listen, upstream] = process.argv.slice(2);
const summary = (toxic) => ({ name: toxic.name, stream: toxic.stream, toxicity: toxic.toxicity, attributes: toxic.attributes });

async function main() {
  const observed = {};
  const server = new Toxiproxy(url);
  observed.version = await server.getVersion();

  const proxy = await server.createProxy({ name: "node", listen, upstream });
  observed.created = { name: proxy.name, listen: proxy.listen, upstream: proxy.upstream, enabled: proxy.enabled };
  observed.twice = await server.createProxy({ name: "node", listen, upstream }).then(() => "created", (error) => error.message);

  const toxic = await proxy.addToxic({
    name: "slow", type: "latency", stream: "upstream", toxicity: 0.5, attributes: { latency: 20, jitter: 3 },
  });
  observed.added = summary(toxic);
  observed.updated = summary(await toxic.update({ attributes: { latency: 30 }, toxicity: 1 }));
  observed.fetched = summary(await proxy.getToxic("slow"));
  await toxic.remove();
  observed.removed = await proxy.getToxic("slow").then(() => "there", (error) => error.message);

  observed.disabled = (await proxy.update({ enabled: false })).enabled;
  await proxy.addToxic({ name: "cut", type: "timeout", stream: "downstream", toxicity: 1, attributes: { timeout: 0 } });
  await server.reset();
  observed.afterReset = (await server.get("node")).enabled;
  observed.cut = await proxy.getToxic("cut").then(() => "there", (error) => error.message);

  const populated = await server.populate([
    { name: "node", listen, upstream },
    { name: "other", listen: "127.0.0.1:0", upstream },
  ]);
  observed.populated = Object.keys(populated).sort();
  observed.all = Object.keys(await server.getAll()).sort();
  for (const one of Object.values(await server.getAll())) await one.remove();
  observed.left = Object.keys(await server.getAll());
  console.log(JSON.stringify(observed));
}

main().catch((error) => { console.error(error); process.exit(1); });
