package cas

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// cdcInput is SHA-256 in counter mode: the input of the recorded cut points.
func cdcInput(n int) []byte {
	b := make([]byte, 0, n)
	for i := uint64(0); len(b) < n; i++ {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte("fastcdc"), i))
		b = append(b, sum[:]...)
	}
	return b[:n]
}

func cutAll(t *testing.T, c *fastCDC, r io.Reader) (lengths []int) {
	t.Helper()
	err := c.each(r, make([]byte, 2*c.max), func(chunk []byte) error {
		lengths = append(lengths, len(chunk))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lengths
}

// TestFastCDCAgrees compares with the cut points of an independent
// implementation of FastCDC 2020 (pyfastcdc 0.3.1, normalization level 2).
func TestFastCDCAgrees(t *testing.T) {
	data := cdcInput(8 << 20)
	small := fastCDC{min: 4096, avg: 16384, max: 65535, small: 0x0000d90303537000, large: 0x0000d90103530000}
	seeded := small
	seeded.seed = 666
	for _, tc := range []struct {
		name  string
		cdc   fastCDC
		count int
		first []int
		hash  string // SHA-256 of all lengths, joined by commas
	}{
		{"16 KiB", small, 451, []int{25984, 16675, 16530, 21135}, "10e45e4d7ad4c0d2319ad5bbf5c2d1093f780d5dc22fa44a6f1b579ea2127582"},
		{"16 KiB, seed 666", seeded, 452, []int{16605, 11986, 24896, 29854}, "efdcc2af4376decbf564c61be674078fd10d4faa2c929c71b02321d6f751caf4"},
		{"512 KiB", storeCDC, 15, []int{1005779, 623190, 241536, 557246}, "a8df48a1f6ca08593728f3f379bc71dc28acdf40a10df32160fc6150dedfd659"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lengths := cutAll(t, &tc.cdc, bytes.NewReader(data))
			joined := strings.ReplaceAll(strings.Trim(fmt.Sprint(lengths), "[]"), " ", ",")
			sum := sha256.Sum256([]byte(joined))
			if len(lengths) != tc.count || hex.EncodeToString(sum[:]) != tc.hash {
				t.Errorf("%d chunks, first %v; want %d, first %v", len(lengths), lengths[:4], tc.count, tc.first)
			}
		})
	}
}

func TestGearTable(t *testing.T) {
	if gear[0] != 0x3b5d3c7d207e37dc { // MD5 of 64 zero bytes begins so
		t.Errorf("gear[0] = %#x", gear[0])
	}
}

func TestChunkerStreams(t *testing.T) {
	for _, size := range []int{0, 1, storeCDC.min, storeCDC.min + 1, storeCDC.max, storeCDC.max + 1, 5<<20 + 3} {
		data := cdcInput(size)
		want := cutAll(t, &storeCDC, bytes.NewReader(data))
		if got := cutAll(t, &storeCDC, iotest.HalfReader(bytes.NewReader(data))); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("size %d: cuts depend on how the stream is read: %v, %v", size, got, want)
		}
		sum := 0
		for i, n := range want {
			sum += n
			if n > storeCDC.max || n < storeCDC.min && i < len(want)-1 {
				t.Errorf("size %d: chunk %d has %d bytes", size, i, n)
			}
		}
		if sum != size {
			t.Errorf("size %d: chunks hold %d", size, sum)
		}
	}
	zeros := cutAll(t, &storeCDC, bytes.NewReader(make([]byte, 9<<20)))
	if len(zeros) != 5 || zeros[0] != storeCDC.max {
		t.Errorf("zeros: %v", zeros)
	}
}

func TestChunksOutsideAnEditStay(t *testing.T) {
	data := cdcInput(16 << 20)
	edited := append(bytes.Clone(data[:4<<20]), append([]byte("inserted"), data[4<<20:]...)...)
	chunks := func(b []byte) map[Digest]bool {
		set := make(map[Digest]bool)
		_ = storeCDC.each(bytes.NewReader(b), make([]byte, 2*storeCDC.max), func(c []byte) error {
			set[DigestOf(c)] = true
			return nil
		})
		return set
	}
	before, after, fresh := chunks(data), chunks(edited), 0
	for d := range after {
		if !before[d] {
			fresh++
		}
	}
	if fresh > 3 {
		t.Errorf("an insertion made %d of %d chunks new", fresh, len(after))
	}
}
