"""Means and variances over repeated trainings, and curves over pre-training steps (MASTER, Table 6 and Figure 2)."""
