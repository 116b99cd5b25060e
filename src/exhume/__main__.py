from exhume.cli import main

main()
