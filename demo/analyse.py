"""Reads protein sequences in FASTA, writes a CSV of their properties and an SVG
plot of hydrophobicity (Kyte and Doolittle, 1982) along each sequence. Uses the
standard library alone."""
import csv
import sys

HYDROPATHY = {"A": 1.8, "R": -4.5, "N": -3.5, "D": -3.5, "C": 2.5, "Q": -3.5, "E": -3.5, "G": -0.4, "H": -3.2, "I": 4.5,
              "L": 3.8, "K": -3.9, "M": 1.9, "F": 2.8, "P": -1.6, "S": -0.8, "T": -0.7, "W": -0.9, "Y": -1.3, "V": 4.2}
# Average residue masses in dalton; a chain adds one water.
MASS = {"A": 71.0788, "R": 156.1875, "N": 114.1038, "D": 115.0886, "C": 103.1388, "Q": 128.1307, "E": 129.1155, "G": 57.0519,
        "H": 137.1411, "I": 113.1594, "L": 113.1594, "K": 128.1741, "M": 131.1926, "F": 147.1766, "P": 97.1167, "S": 87.0782,
        "T": 101.1051, "W": 186.2132, "Y": 163.1760, "V": 99.1326}
WATER = 18.0153
WINDOW = 9


def read_fasta(path):
    name, parts = None, []
    with open(path) as lines:
        for line in map(str.strip, lines):
            if line.startswith(">"):
                if name:
                    yield name, "".join(parts)
                name, parts = line[1:].split()[0], []
            elif line:
                parts.append(line)
    if name:
        yield name, "".join(parts)


def windowed(sequence):
    values = [HYDROPATHY[r] for r in sequence]
    return [sum(values[i:i + WINDOW]) / WINDOW for i in range(len(values) - WINDOW + 1)]


def svg(proteins):
    height, width = 90, 760
    rows = []
    for n, (name, sequence) in enumerate(proteins):
        base = n * height + 55
        curve = windowed(sequence)
        step = (width - 160) / max(len(curve) - 1, 1)
        points = " ".join(f"{150 + i * step:.1f},{base - v * 9:.1f}" for i, v in enumerate(curve))
        rows.append(f'<text x="10" y="{base}" font-size="14">{name}</text>'
                    f'<line x1="150" x2="{width - 10}" y1="{base}" y2="{base}" stroke="#bbb"/>'
                    f'<polyline points="{points}" fill="none" stroke="#1668a8" stroke-width="1.5"/>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(proteins) * height + 20}" '
            f'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(rows)}</svg>\n')


def main():
    source, table, plot = sys.argv[1:]
    proteins = list(read_fasta(source))
    with open(table, "w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["accession", "length", "mass_da", "gravy", "cysteines"])
        for name, sequence in proteins:
            gravy = sum(HYDROPATHY[r] for r in sequence) / len(sequence)
            mass = sum(MASS[r] for r in sequence) + WATER
            rows.writerow([name, len(sequence), f"{mass:.1f}", f"{gravy:.3f}", sequence.count("C")])
            print(f"{name}: {len(sequence)} residues, {mass / 1000:.1f} kDa, GRAVY {gravy:+.3f}")
    with open(plot, "w") as out:
        out.write(svg(proteins))
    print(f"{len(proteins)} proteins -> {table}, {plot}")


if __name__ == "__main__":
    main()
