// A plain read of memory as fast as one thread can: eight streams, each fetched 4 KiB ahead into the L2. Fewer streams or
// 8-byte loads read a tenth to a fifth less on Zen 4, AVX-512 loads no more.
#ifndef NIB_BASE_READ_STREAM_H
#define NIB_BASE_READ_STREAM_H

#include <stddef.h>
#include <stdint.h>

#define NIB_READ_STREAMS 8
#define NIB_READ_AHEAD 4096 // bytes
#define NIB_READ_LINE 64

// Reads all but the last few lines once; the result only makes the reads necessary.
uint64_t nib_read_stream_avx2(const uint8_t *data /* [bytes] */, size_t bytes);

#endif
