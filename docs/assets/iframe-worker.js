// Browsers do not start web workers on pages that are opened from disk. There, the script of the search worker runs in a
// hidden frame instead, whose messages go to and fro like a worker's.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((resolve, reject) => {
      const script = frame.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${url}`));
      frame.document.body.append(script);
    });

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.element = document.createElement("iframe");
      this.element.hidden = true;
      document.body.append(this.element);
      this.frame = this.element.contentWindow;
      this.frame.document.write("<!doctype html><body></body>");
      this.frame.document.close();
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => load(this.frame, next)), Promise.resolve());
      this.loaded = load(this.frame, new URL(url, location.href).href);
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data })));
    }

    terminate() {
      this.element.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
