// supergateway listens on every address of the machine and has no option for one; a
// measurement opens nothing to the network. Loaded before it.

import { Server } from 'node:net';

const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...rest) {
    return typeof port === 'object' ? listen.call(this, port, ...rest) : listen.call(this, port, '127.0.0.1', ...rest);
};
