// Makes supergateway listen on loopback only: it has no option for an address, and a measurement
// must not open a port to the network. Node loads this file before supergateway.

import { Server } from 'node:net';

const { listen } = Server.prototype;
Server.prototype.listen = function (port, ...rest) {
    return typeof port === 'object' ? listen.call(this, port, ...rest) : listen.call(this, port, '127.0.0.1', ...rest);
};
