"""What is built on models and runs: metrics, analysis, the explorer, tables, examples, benchmarks and the demo."""
