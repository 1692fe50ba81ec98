// Preloaded before a peer's own code (`node --import`). The official HTTP servers listen on every
// interface and print the port they asked for; with this they listen on 127.0.0.1 alone, may be
// given port 0, and print the address they got, as one line on stderr: "listening on 127.0.0.1:PORT".
import net from "node:net";

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => {
    const { address, port } = this.address();
    process.stderr.write(`listening on ${address}:${port}\n`);
  });
  const callback = rest.find((argument) => typeof argument === "function");
  return listen.call(this, { host: "127.0.0.1", port: Number(port) }, callback);
};
