/* LZ4 blocks without a frame: a list of sequences, each a token (two lengths of 4 bits), literals, and a match
 * (distance back and length). A length of 15 continues in the next bytes, up to the first byte below 255. The last
 * sequence has no match. Linked only by programs whose plan has packed weights. */
#include "internal.h"

/* Reads a length: 4 bits of a token, plus the bytes from *at on if all 4 bits are set. Returns UINT32_MAX if it
 * exceeds `most` or the data end. */
static uint32_t length_of(uint32_t length, const uint8_t* packed, uint32_t bytes, uint32_t* at, uint32_t most) {
  uint8_t more = length == 15 ? 255 : 0;
  while (more == 255) {
    if (*at == bytes || length > most) return UINT32_MAX;
    more = packed[(*at)++];
    length += more;
  }
  return length > most ? UINT32_MAX : length;
}

static int unpack(const uint8_t* packed, uint32_t packed_bytes, uint8_t* out, uint32_t bytes) {
  uint32_t at = 0, done = 0;
  while (at < packed_bytes) {
    const uint32_t token = packed[at++];
    uint32_t length = length_of(token >> 4, packed, packed_bytes, &at, bytes - done), back;
    if (length == UINT32_MAX || length > packed_bytes - at) return 0;
    memcpy(out + done, packed + at, length);
    at += length;
    done += length;
    if (at == packed_bytes) return done == bytes;
    if (packed_bytes - at < 2) return 0;
    back = (uint32_t)packed[at] | (uint32_t)packed[at + 1] << 8;
    at += 2;
    if (back == 0 || back > done || bytes - done < 4) return 0;
    length = length_of(token & 15, packed, packed_bytes, &at, bytes - done - 4);
    if (length == UINT32_MAX) return 0;
    for (length += 4; length; --length, ++done) out[done] = out[done - back]; /* the match may overlap its own output */
  }
  return 0;
}

const hx_codec hx_codec_lz4 = {"lz4", unpack};
