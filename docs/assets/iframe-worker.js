// The search runs in a worker, which browsers refuse to pages that are opened from a disk. There this stands in for it:
// a hidden frame of the page's own, in which the worker's script runs with a worker's two functions.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.ready = new Promise((resolve) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.onload = () => resolve(inside);
          script.onerror = () => this.dispatchEvent(new ErrorEvent("error", { message: `${url} cannot be loaded` }));
          script.src = url;
          inside.document.head.append(script);
        };
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
