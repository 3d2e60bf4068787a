// A picture that is written pixel by pixel. A stack that is zoomed out has tens of thousands of boxes
// one pixel wide, which a canvas fills far more slowly one by one.

class Pixels {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.image = new ImageData(width, height);
    this.data = new Uint32Array(this.image.data.buffer);
  }

  fill(colour, left, top, right, bottom) {
    const { data, width } = this;
    for (let row = top; row < bottom; row++)
      data.fill(colour, row * width + left, row * width + right);
  }

  /** The picture on a canvas of its own, which can be drawn over another. */
  get canvas() {
    const canvas = document.createElement("canvas");
    canvas.width = this.width;
    canvas.height = this.height;
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    return canvas;
  }
}

/** `#rrggbb` as red, green and blue. */
function parts(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** `share` of the second colour in the first, as a pixel: red, green, blue and alpha in its bytes. */
function mixed(hex, other, share) {
  const target = parts(other);
  const bytes = parts(hex).map((part, i) => Math.round(part + (target[i] - part) * share));
  return new Uint32Array(new Uint8Array([...bytes, 255]).buffer)[0];
}
