/* LZ4 frames of one buffer, as Arrow stores them: https://github.com/lz4/lz4/tree/dev/doc (frame and block format).
 *
 * No library: the functions are small, and every access is inside the bounds that the caller gives.
 * lz4_frame_decode: the frame must have exactly `size` bytes of content; blocks may be linked.  Checksums of the frame
 * are not compared: the pages of a segment have their own.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LZ4_SLACK = 32, LZ4_HASH_BITS = 14, LZ4_BLOCK = 4 << 20, LZ4_MIN_MATCH = 4, LZ4_LAST = 5, LZ4_LIMIT = 12 };

static inline uint32_t lz4_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t lz4_u64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

/* The length that follows a token with 15 in it; -1 when the input ends. */
static inline int64_t lz4_length(const uint8_t **ip, const uint8_t *end) {
    int64_t n = 0;
    uint8_t byte;
    do {
        if (*ip >= end)
            return -1;
        n += byte = *(*ip)++;
    } while (byte == 255);
    return n;
}

/* Decode one block to `op`; returns the end of the output, NULL when the block is damaged.  Up to LZ4_SLACK bytes after
 * `oend` may be overwritten.  Matches reach back to `base`. */
static uint8_t *lz4_block_decode(const uint8_t *ip, const uint8_t *iend, const uint8_t *base, uint8_t *op, uint8_t *oend) {
    while (ip < iend) {
        unsigned token = *ip++;
        int64_t n = token >> 4, more;
        if (n == 15) {
            if ((more = lz4_length(&ip, iend)) < 0)
                return NULL;
            n += more;
        }
        if (n > iend - ip || n > oend - op)
            return NULL;
        if (n <= 16 && iend - ip >= 16)
            memcpy(op, ip, 16);
        else
            memcpy(op, ip, n);
        op += n;
        ip += n;
        if (ip == iend)
            return op;                              /* the last sequence has no match */
        if (iend - ip < 2)
            return NULL;
        int64_t offset = ip[0] | ip[1] << 8;
        ip += 2;
        n = token & 15;
        if (n == 15) {
            if ((more = lz4_length(&ip, iend)) < 0)
                return NULL;
            n += more;
        }
        n += LZ4_MIN_MATCH;
        if (!offset || offset > op - base || n > oend - op)
            return NULL;
        const uint8_t *match = op - offset;
        uint8_t *stop = op + n;
        if (offset >= 16) {
            do {
                memcpy(op, match, 16);
                op += 16;
                match += 16;
            } while (op < stop);
        } else if (offset >= 8 && n <= 16) {
            memcpy(op, match, 8);
            memcpy(op + 8, match + 8, 8);
        } else {
            while (n > 0) {                         /* the distance doubles with each copy */
                int64_t part = op - match < n ? op - match : n;
                memcpy(op, match, part);
                op += part;
                n -= part;
            }
        }
        op = stop;
    }
    return op;
}

/* 0, or -1 when the frame is damaged or has not `size` bytes of content. */
static int lz4_frame_decode(const uint8_t *in, uint64_t n, uint8_t *out, uint64_t size) {
    const uint8_t *ip = in, *end = in + n;
    uint8_t *op = out, *oend = out + size;
    if (n < 7 || lz4_u32(ip) != 0x184D2204)
        return -1;
    unsigned flags = ip[4];
    uint64_t head = 7 + (flags & 8 ? 8 : 0) + (flags & 1 ? 4 : 0);
    if (flags >> 6 != 1 || n < head || (flags & 8 && lz4_u64(ip + 6) != size))
        return -1;
    ip += head;
    for (;;) {
        if (end - ip < 4)
            return -1;
        uint32_t length = lz4_u32(ip);
        ip += 4;
        if (!length)
            break;
        int stored = length >> 31;
        length &= 0x7fffffff;
        if (length > end - ip)
            return -1;
        if (stored) {
            if (length > oend - op)
                return -1;
            memcpy(op, ip, length);
            op += length;
        } else if (!(op = lz4_block_decode(ip, ip + length, out, op, oend)))
            return -1;
        ip += length;
        if (flags & 16) {
            if (end - ip < 4)
                return -1;
            ip += 4;
        }
    }
    return op == oend ? 0 : -1;
}

static inline uint32_t lz4_rotate(uint32_t v, int n) { return v << n | v >> (32 - n); }

/* xxHash32 with seed 0 of less than 16 bytes: the checksum of the frame's descriptor. */
static uint32_t lz4_short_hash(const uint8_t *p, uint32_t n) {
    uint32_t h = 374761393u + n;
    for (; n >= 4; p += 4, n -= 4)
        h = lz4_rotate(h + lz4_u32(p) * 3266489917u, 17) * 668265263u;
    for (; n; p++, n--)
        h = lz4_rotate(h + *p * 374761393u, 11) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return h ^ h >> 16;
}

static inline uint8_t *lz4_put_length(uint8_t *op, uint64_t n) {
    for (; n >= 255; n -= 255)
        *op++ = 255;
    *op++ = (uint8_t)n;
    return op;
}

static inline uint8_t *lz4_put_literals(uint8_t *op, const uint8_t *from, uint64_t n, unsigned match) {
    *op++ = (uint8_t)((n < 15 ? n : 15) << 4 | match);
    if (n >= 15)
        op = lz4_put_length(op, n - 15);
    memcpy(op, from, n);
    return op + n;
}

static inline uint32_t lz4_hash(uint32_t v) { return v * 2654435761u >> (32 - LZ4_HASH_BITS); }

/* Greedy, one candidate for each hash.  `out` has room for n + n / 255 + 16 bytes.  Returns the compressed size. */
static uint64_t lz4_block_encode(const uint8_t *in, uint32_t n, uint8_t *out, uint32_t *table) {
    const uint8_t *ip = in, *anchor = in, *end = in + n, *limit = end - LZ4_LIMIT;
    uint8_t *op = out;
    memset(table, 0, sizeof(uint32_t) << LZ4_HASH_BITS);
    uint32_t tries = 1 << 6;
    if (n > LZ4_LIMIT)
        ip++;
    while (n > LZ4_LIMIT && ip <= limit) {
        uint32_t word = lz4_u32(ip), h = lz4_hash(word);
        const uint8_t *match = in + table[h];
        table[h] = (uint32_t)(ip - in);
        if (ip - match > 65535 || lz4_u32(match) != word || match == ip) {
            ip += tries++ >> 6;                     /* faster through what does not compress */
            continue;
        }
        tries = 1 << 6;
        while (ip > anchor && match > in && ip[-1] == match[-1])
            ip--, match--;
        const uint8_t *at = ip + LZ4_MIN_MATCH, *same = match + LZ4_MIN_MATCH;
        while (at + 8 <= end - LZ4_LAST && lz4_u64(at) == lz4_u64(same))
            at += 8, same += 8;
        while (at < end - LZ4_LAST && *at == *same)
            at++, same++;
        uint64_t length = at - ip - LZ4_MIN_MATCH;
        op = lz4_put_literals(op, anchor, ip - anchor, length < 15 ? (unsigned)length : 15);
        uint32_t offset = (uint32_t)(ip - match);
        *op++ = (uint8_t)offset;
        *op++ = (uint8_t)(offset >> 8);
        if (length >= 15)
            op = lz4_put_length(op, length - 15);
        if (at - 2 > ip && at <= limit)
            table[lz4_hash(lz4_u32(at - 2))] = (uint32_t)(at - 2 - in);
        ip = anchor = at;
    }
    return lz4_put_literals(op, anchor, end - anchor, 0) - out;
}

/* Most bytes of a frame with `size` bytes of content. */
static uint64_t lz4_frame_bound(uint64_t size) {
    return 32 + size + size / 255 + (size / LZ4_BLOCK + 1) * 32;
}

/* Bytes of the frame in `out`, 0 without memory. */
static uint64_t lz4_frame_encode(const uint8_t *in, uint64_t size, uint8_t *out) {
    uint32_t *table = malloc(sizeof(uint32_t) << LZ4_HASH_BITS);
    uint32_t magic = 0x184D2204, length, none = 0;
    uint8_t *op = out + 15;
    uint64_t at;
    if (!table)
        return 0;
    memcpy(out, &magic, 4);
    out[4] = 0x68;                                  /* version 1, independent blocks, size of the content */
    out[5] = 0x70;                                  /* blocks of up to 4 MiB */
    memcpy(out + 6, &size, 8);
    out[14] = (uint8_t)(lz4_short_hash(out + 4, 10) >> 8);
    for (at = 0; at < size; at += LZ4_BLOCK) {
        uint32_t part = size - at < LZ4_BLOCK ? (uint32_t)(size - at) : LZ4_BLOCK;
        length = (uint32_t)lz4_block_encode(in + at, part, op + 4, table);
        if (length >= part) {
            memcpy(op + 4, in + at, part);
            length = part | 1u << 31;
        }
        memcpy(op, &length, 4);
        op += 4 + (length & 0x7fffffff);
    }
    memcpy(op, &none, 4);
    free(table);
    return op + 4 - out;
}
