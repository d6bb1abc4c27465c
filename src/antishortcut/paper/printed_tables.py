"""The numbers of the paper's tables, as they are printed: mean±std, * where the table marks the best, - for nothing.

Rows are named as runs are (kd, asd-k8), columns as pairs, so that a run finds its number. See `printed.py`.
"""

from __future__ import annotations

# place, measure, columns; then a row a line
GRIDS: tuple[tuple[str, str, str, str], ...] = (
    ("Table 1", "accuracy", "P1 P2 P3 P4 P5", """
teacher     79.91        76.49        79.72        76.49        76.15
student     78.79        73.33        71.90        71.49        71.10
kd          80.22±0.19   74.74±0.17   73.32±0.11   73.38±0.47   73.68±0.35
fitnets+kd  80.32±0.17   74.94±0.24   73.55±0.04   73.54±0.18   73.91±0.11
at+kd       80.30±0.12   74.99±0.15   73.78±0.15*  73.79±0.16   71.61±0.12
dkd         80.04±0.36   75.08±0.14   73.69±0.32   73.63±0.07   73.99±0.05
crd+kd      80.71±0.34   74.76±0.12   73.15±0.12   73.63±0.33   74.04±0.18
ckptkd      73.94±0.13   71.31±0.06   72.17±0.15   70.65±0.15   70.48±0.12
asd         80.50±0.07*  75.87±0.29*  73.13±0.12   74.16±0.21*  74.26±0.13*
"""),
    ("Table 2", "accuracy", "P6 P7 P8 P9 P10", """
teacher     76.49        76.49        79.72        79.72        76.15
student     63.26        71.46        71.46        63.26        64.12
ce          63.26±0.27   71.46±0.38   71.46±0.38   63.26±0.27   64.12±0.31
kd          66.72±0.32   73.79±0.26   73.09±0.38   66.17±0.18   65.86±0.28
fitnets+kd  67.07±0.15   74.27±0.04   73.20±0.50   66.07±0.36   66.18±0.22
at+kd       67.66±0.19   73.97±0.21   73.25±0.28   66.28±0.24   66.38±0.19
dkd         66.84±0.31   73.63±0.39   72.33±0.33   66.42±0.28   66.02±0.24
crd+kd      67.81±0.42   74.34±0.47   73.60±0.16   66.98±0.36   66.64±0.31
ckptkd      67.27±0.03   72.66±0.20   73.39±0.01   66.52±0.08   66.08±0.14
asd         68.05±0.14*  74.94±0.09*  73.98±0.27*  67.18±0.19*  67.02±0.18*
"""),
    ("Table 3", "accuracy", "P11 P12 P13", """
teacher     85.30        43.14        85.30
student     80.21        42.98        83.85
ce          80.21±0.07   42.98±0.46   83.85±0.15
kd          82.43±0.41   44.36±1.23   84.72±0.35
fitnets+kd  82.51±0.30   44.58±0.83   84.88±0.22
at+kd       82.90±0.30   44.42±0.91   84.92±0.26
dkd         82.54±0.18   45.44±1.11   84.85±0.18
crd+kd      83.01±0.18   45.02±1.08   85.24±0.19
ckptkd      82.70±0.30   44.75±1.02   84.80±0.28
asd         83.24±0.13*  46.00±1.45*  85.48±0.15*
"""),
    ("Table 4", "mIoU", "ade20k-resnet18 ade20k-mobilenetv2", """
teacher     42.70   42.70
student     33.91   34.32
kd          34.88   34.92
af-dcd      36.21   35.97
ufd-kd      36.89   36.24
asd         38.87*  37.91*
"""),
    ("Table 4", "pixel accuracy", "ade20k-resnet18 ade20k-mobilenetv2", """
kd          76.32   76.74
af-dcd      77.43   77.28
asd         78.92   78.65
"""),
    ("Table 5", "mCE", "P1 P2 P3 P4 P5 P6", """
ce          87.0±0.3    95.9±0.2    99.6±0.4    93.7±0.4    87.0±0.3    88.5±0.4
kd          86.2±0.4    93.7±0.4    98.1±0.3    92.2±0.6    85.6±0.3    86.9±0.4
fitnets+kd  86.0±0.4    93.6±0.1    98.0±0.3    92.1±0.3    85.5±0.2    86.8±0.3
at+kd       85.7±0.6    93.6±0.5    97.8±0.5    92.0±0.4    85.5±0.3    87.4±0.2
dkd         85.9±0.9    93.4±0.3*   97.5±0.2    92.4±0.3    85.5±0.1    87.4±0.5
crd+kd      85.2±0.6*   93.8±0.3    98.2±0.1    92.7±0.6    85.9±0.5    86.7±0.3
ckptkd      90.9±0.1    99.1±0.2    96.6±0.2*   98.7±0.2    90.0±0.2    92.2±0.1
asd         85.6±0.4    94.2±0.4    97.9±0.2    91.7±0.4*   85.2±0.3*   86.1±0.4*
"""),
    ("Table 6", "accuracy", "P1", """
kd          80.22±0.19
asd-no-ss   80.19±0.07
asd-no-tc   80.15±0.19
asd         80.50±0.07*
"""),
    ("Table 6", "mCE", "P1", """
kd          86.2±0.4
asd-no-ss   85.8±0.7
asd-no-tc   85.9±0.4
asd         85.6±0.4*
"""),
    ("Table 7", "accuracy", "P1", """
asd-early12 80.25
asd-early24 80.26
asd         80.50±0.07*
asd-early48 80.16
asd-early72 80.56
"""),
    ("Table 7", "T_early epoch", "P1", """
asd-early12 12
asd-early24 24
asd         36
asd-early48 48
asd-early72 72
"""),
    ("Table 7", "T_early, % of training", "P1", """
asd-early12 5
asd-early24 10
asd         15
asd-early48 20
asd-early72 30
"""),
    ("Table 8", "accuracy", "P1 P2 P3 P6 P5", """
kd          80.22±0.19   74.74±0.17   73.32±0.11*  66.72±0.32   73.68±0.35
asd         80.50±0.07*  75.87±0.29*  73.13±0.12   68.05±0.14*  74.26±0.13*
"""),
    ("S-Table 1", "alignment with T_final", "P1 P5 P3 P12", """
kd          0.31  0.30  0.38  0.42
asd         0.90  0.75  0.80  0.52
"""),
    ("S-Table 1", "alignment with T_early", "P1 P5 P3 P12", """
kd          0.33  0.25  0.41  0.37
asd         0.61  0.52  0.73  0.34
"""),
    ("S-Table 1", "shortcut magnitude, % against KD", "P1 P5 P3 P12", """
asd         -15.8  -20.5  -28.3  -17.0
"""),
    ("S-Table 1", "shape", "P1 P5 P3 P12", """
kd          47.4   38.3   33.1   -
asd         49.0*  39.0*  34.1*  -
"""),
    ("S-Table 2", "shortcut energy", "P1", """
epoch:5     0.178
epoch:20    0.160
epoch:35    0.253*
epoch:90    0.153
epoch:150   0.160
epoch:210   0.129
epoch:240   0.128
"""),
    ("S-Table 2", "robust energy", "P1", """
epoch:5     0.111
epoch:20    0.112
epoch:35    0.129
epoch:90    0.121
epoch:150   0.117
epoch:210   0.104
epoch:240   0.106
"""),
    ("S-Table 3", "ImageNet-R", "P11", "ce 32.36±0.69\nkd 36.32±0.81\nasd 37.50±0.76*"),
    ("S-Table 3", "ImageNet-R, seed 1", "P11", "ce 33.33\nkd 37.14\nasd 38.26"),
    ("S-Table 3", "ImageNet-R, seed 2", "P11", "ce 31.85\nkd 35.52\nasd 36.75"),
    ("S-Table 3", "ImageNet-R, seed 3", "P11", "ce 31.89\nkd 36.31\nasd 37.48"),
    ("S-Table 3", "stylised", "P11", "ce 14.89±0.24\nkd 18.69±0.64\nasd 19.53±0.85*"),
    ("S-Table 3", "stylised, seed 1", "P11", "ce 15.14\nkd 19.38\nasd 19.14"),
    ("S-Table 3", "stylised, seed 2", "P11", "ce 14.98\nkd 17.84\nasd 20.72"),
    ("S-Table 3", "stylised, seed 3", "P11", "ce 14.56\nkd 18.84\nasd 18.74"),
    ("S-Table 3", "ImageNet-A", "P11", "ce 4.95±0.25\nkd 6.08±0.73\nasd 5.39±0.49"),
    ("S-Table 3", "ImageNet-A, seed 1", "P11", "ce 5.29\nkd 7.06\nasd 4.85"),
    ("S-Table 3", "ImageNet-A, seed 2", "P11", "ce 4.85\nkd 5.88\nasd 5.29"),
    ("S-Table 3", "ImageNet-A, seed 3", "P11", "ce 4.71\nkd 5.29\nasd 6.03"),
    ("S-Table 4", "accuracy", "P1", "asd-k1 80.21±0.18\nasd-k2 80.39±0.13\nasd 80.50±0.07*\nasd-k8 80.27±0.16"),
    ("S-Table 4", "mCE", "P1", "asd-k1 86.0±0.5\nasd-k2 85.7±0.4\nasd 85.6±0.4*\nasd-k8 85.9±0.6"),
    ("S-Table 4", "K", "P1", "asd-k1 1\nasd-k2 2\nasd 4\nasd-k8 8"),
    ("S-Table 5", "accuracy", "P1", """
asd-eps0.05  80.31±0.12
asd          80.50±0.07*
asd-eps0.2   80.38±0.15
asd-eps0.4   80.27±0.21
"""),
    ("S-Table 5", "mCE", "P1", "asd-eps0.05 85.7±0.5\nasd 85.6±0.4*\nasd-eps0.2 86.0±0.3\nasd-eps0.4 86.1±0.6"),
    ("S-Table 5", "ε", "P1", "asd-eps0.05 0.05\nasd 0.1\nasd-eps0.2 0.2\nasd-eps0.4 0.4"),
    ("S-Table 6", "accuracy", "P1", "asd-m0 80.24±0.20\nasd-m1024 80.41±0.10\nasd 80.50±0.07*\nasd-m16384 80.46±0.13"),
    ("S-Table 6", "M", "P1", "asd-m0 0\nasd-m1024 1024\nasd 4096\nasd-m16384 16384"),
    ("S-Table 7", "accuracy", "P1", """
asd-warmup0   79.83±0.31
asd-warmup10  80.34±0.14
asd           80.50±0.07*
asd-warmup40  80.42±0.12
"""),
    ("S-Table 7", "warm-up epochs", "P1", "asd-warmup0 0\nasd-warmup10 10\nasd 20\nasd-warmup40 40"),
    ("S-Table 8", "accuracy", "P1", "asd-b32 79.88\nasd 80.27*\nasd-b128 80.06\nasd-b256 79.79"),
    ("S-Table 8", "mCE", "P1", "asd-b32 85.41*\nasd 86.09\nasd-b128 86.6\nasd-b256 88.6"),
    ("S-Table 8", "angle to the global subspace, °", "P1", "asd-b32 63.1\nasd 56.1\nasd-b128 46.4\nasd-b256 37.9"),
    ("S-Table 8", "angle between batches, °", "P1", "asd-b32 74.9\nasd 67.9\nasd-b128 59.0\nasd-b256 49.2"),
    ("S-Table 8", "B", "P1", "asd-b32 32\nasd 64\nasd-b128 128\nasd-b256 256"),
    ("S-Table 9", "accuracy", "P12", "crd+kd 45.02\nasd 46.00"),
    ("S-Table 9", "accuracy, seed 1", "P12", "crd+kd 44.91\nasd 45.53"),
    ("S-Table 9", "accuracy, seed 2", "P12", "crd+kd 45.16\nasd 46.30"),
    ("S-Table 9", "accuracy, seed 3", "P12", "crd+kd 44.99\nasd 46.17"),
    ("S-Table 9", "accuracy against crd+kd", "P12", "asd 0.98"),
    ("S-Table 9", "accuracy against crd+kd, seed 1", "P12", "asd 0.62"),
    ("S-Table 9", "accuracy against crd+kd, seed 2", "P12", "asd 1.14"),
    ("S-Table 9", "accuracy against crd+kd, seed 3", "P12", "asd 1.18"),
)  # fmt: skip
