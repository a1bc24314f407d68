/*
 * SHA-256, one block at a time, and Base64. Portable; the inputs are the
 * program messages of models, a few megabytes at most.
 */
#include "converter/base/sha256.h"

#include <string.h>

#define BLOCK 64

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t v, int n)
{
    return v >> n | v << (32 - n);
}

static uint32_t load_be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 |
           p[3];
}

static void store_be(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
}

/* Eight words turn through eight places instead of being moved. */
#define AT(k) s[((k)-i) & 7]

static void block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];

    for (int i = 0; i < 16; i++)
        w[i] = load_be(p + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = AT(4), a = AT(0);
        uint32_t one = AT(7) + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                       ((e & AT(5)) ^ (~e & AT(6))) + rounds[i] + w[i];
        uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                       ((a & AT(1)) ^ (a & AT(2)) ^ (AT(1) & AT(2)));

        AT(3) += one;
        AT(7) = one + two;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void sha256(const void *data, size_t n, uint8_t out[SHA256_BYTES])
{
    uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    uint8_t last[2 * BLOCK] = { 0 };
    const uint8_t *p = data;
    size_t left = n, tail;

    for (; left >= BLOCK; left -= BLOCK, p += BLOCK)
        block(h, p);
    if (left)
        memcpy(last, p, left);
    last[left] = 0x80;
    tail = left + 9 <= BLOCK ? BLOCK : 2 * BLOCK;
    store_be(last + tail - 8, (uint64_t)n * 8, 8);
    for (size_t i = 0; i < tail; i += BLOCK)
        block(h, last + i);
    for (int i = 0; i < 8; i++)
        store_be(out + 4 * i, h[i], 4);
}

void base64(const void *data, size_t n, char *out)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = data;

    for (size_t i = 0; i < n; i += 3, out += 4) {
        size_t left = n - i;
        uint32_t v = (uint32_t)p[i] << 16;

        v |= left > 1 ? (uint32_t)p[i + 1] << 8 : 0;
        v |= left > 2 ? p[i + 2] : 0;
        out[0] = digits[v >> 18];
        out[1] = digits[v >> 12 & 63];
        out[2] = left > 1 ? digits[v >> 6 & 63] : '=';
        out[3] = left > 2 ? digits[v & 63] : '=';
    }
    *out = '\0';
}
