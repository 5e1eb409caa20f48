// Makes mcp-memory.jsonl: npm install @modelcontextprotocol/server-memory; node make_mcp_memory.mjs FILE
import { spawn } from "node:child_process";
const file = process.argv[2];
const server = spawn("node", ["node_modules/@modelcontextprotocol/server-memory/dist/index.js"], { env: { ...process.env, MEMORY_FILE_PATH: file }, stdio: ["pipe", "pipe", "inherit"] });
let id = 0;
const send = (method, params) => server.stdin.write(JSON.stringify({ jsonrpc: "2.0", id: ++id, method, params }) + "\n");
server.stdout.on("data", (d) => { if (String(d).includes('"id":4')) server.kill(); });
send("initialize", { protocolVersion: "2024-11-05", capabilities: {}, clientInfo: { name: "x", version: "1" } });
server.stdin.write(JSON.stringify({jsonrpc:"2.0",method:"notifications/initialized"})+"\n");
send("tools/call", { name: "create_entities", arguments: { entities: [ { name: "Alice", entityType: "person", observations: ["Is allergic to walnuts", "Lives in Zürich 🏔"] }, { name: "Acme / Labs", entityType: "organization", observations: [] } ] } });
setTimeout(() => send("tools/call", { name: "create_relations", arguments: { relations: [ { from: "Alice", to: "Acme / Labs", relationType: "works at" } ] } }), 1500);
setTimeout(() => send("tools/call", { name: "read_graph", arguments: {} }), 2500);
